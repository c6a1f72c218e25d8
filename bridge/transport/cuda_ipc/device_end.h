// What one end of a cuda_ipc route has on the device: for each frame a mark that says how far this end's work on it is,
// and, at the sending end, the frames. The other end sees it through IPC handles, or, in the same process, directly: no
// process can open what it exported itself.
//
// No stream waits for the other process. A mark is asked about by the host, which has a deadline: work that waited for
// a peer which is killed would stay in its stream for ever, and what comes behind it too.
//
// Thread-safety: thread-safe; who may touch which frame is the route's matter.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bridge/transport/transport.h"
#include "device/device.h"

namespace bascule {

// How one end names itself to the other. All zero past `credits`.
struct DeviceEndName {
  std::array<std::uint8_t, 16> device{};   // UUID
  std::array<std::uint8_t, 16> process{};  // of this process alone: see FindHere
  std::uint64_t end = 0;                   // among those of the process
  std::uint64_t memory_bytes = 0;          // of the frames; 0 at the receiving end
  MemoryHandle memory;
  std::array<EventHandle, kMaxCredits> marks{};
};

class DeviceEnd {
 public:
  // The sending end makes frames, of at least `frame_bytes` each; the receiving end (0) only marks. `device` outlives
  // it. Errors of the device; "not_exportable".
  static Result<std::shared_ptr<DeviceEnd>> Make(Device& device, std::int64_t frame_bytes, std::int32_t credits);

  // The peer's end, for frames of these sizes, as `device` sees it. Memory and events stay open until the last owner
  // lets go.
  //
  // FailedPrecondition "no_peer_access"  it lies on another device, whose memory this one cannot reach
  // FailedPrecondition "other_device"    likewise, in this process
  // InvalidArgument "bad_memory_handle"  its memory is smaller; Unavailable "peer_lost"; errors of the device
  static Result<std::shared_ptr<DeviceEnd>> Open(Device& device, const DeviceEndName& name, std::int64_t frame_bytes,
                                                 std::int32_t credits);
  ~DeviceEnd();

  const DeviceEndName& name() const { return name_; }
  std::span<std::byte> frame(std::uint64_t index) const;
  DeviceEvent& mark(std::uint64_t index) const { return *marks_.at(index); }
  bool is_own() const { return is_own_; }

  // Waits until all work that its marks stand for is done, so that what it works on may go.
  //
  // DeadlineExceeded "device_deadline"; errors of the device
  Status Settle(Deadline deadline, Clock& clock) const;

 private:
  DeviceEnd(bool is_own, std::int64_t frame_bytes) : is_own_(is_own), frame_bytes_(frame_bytes) {}
  static Result<std::shared_ptr<DeviceEnd>> FindHere(const DeviceEndName& name);
  static Result<std::shared_ptr<DeviceEnd>> OpenFar(Device& device, const DeviceEndName& name, std::int64_t frame_bytes,
                                                    std::int32_t credits);

  const bool is_own_;
  const std::int64_t frame_bytes_;
  DeviceEndName name_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::vector<std::unique_ptr<DeviceEvent>> marks_;
};

}  // namespace bascule
