// The second parts of a route's frames at one end: memory of that end's device, in one allocation, and two marks for
// each frame: how far its user is, who fills it or reads it, and how far NCCL is, which sends it or receives into it.
//
// Thread-safety: thread-safe; who may touch which frame is the route's matter.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"

namespace bascule {

class DeviceFrames {
 public:
  // ResourceExhausted "device_memory"; errors of the device
  static Result<std::unique_ptr<DeviceFrames>> Make(Device& device, std::int64_t frame_bytes, std::int32_t credits);

  std::span<std::byte> frame(std::uint32_t index) const;
  std::span<std::byte> all() const { return memory_->bytes(); }
  DeviceEvent& used(std::uint32_t index) const { return *used_.at(index); }
  DeviceEvent& moved(std::uint32_t index) const { return *moved_.at(index); }

  // Its end goes: frees it once all work on it is done. Where that does not happen soon, or NCCL is stuck (`links`), it
  // stays for as long as the process lives.
  static void Release(std::unique_ptr<DeviceFrames> frames, const Status& links);

 private:
  explicit DeviceFrames(std::int64_t frame_bytes) : frame_bytes_(frame_bytes) {}
  Status Settle() const;

  const std::int64_t frame_bytes_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::vector<std::unique_ptr<DeviceEvent>> used_;
  std::vector<std::unique_ptr<DeviceEvent>> moved_;
};

}  // namespace bascule
