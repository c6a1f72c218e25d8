// The device in whose memory a source's weights lie, and what reading them there needs: room for tables, digests and
// payload, kept from publish to publish, since allocating on a device makes all of its streams wait.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"
#include "kernels/box_moves.h"
#include "kernels/device_kernels.h"

namespace bascule {

class TransportDialer;

// Memory that is made when it is first needed and grows to the most that is.
class GrowingBuffer {
 public:
  // At least `bytes` of `memory`; what lay there is lost when it grows.
  Result<std::span<std::byte>> Take(DeviceMemory& memory, std::size_t bytes);
  std::span<std::byte> bytes() const { return buffer_ == nullptr ? std::span<std::byte>() : buffer_->bytes(); }

 private:
  std::unique_ptr<DeviceBuffer> buffer_;
};

// Where one launch over boxes happens: its stream, its table, and what comes back from it. One launch at a time.
struct DeviceBench {
  std::unique_ptr<DeviceStream> stream;
  std::unique_ptr<DeviceEvent> done;  // behind all that was enqueued
  GrowingBuffer table;                // of the device
  GrowingBuffer host_table;           // pinned, as what follows
  GrowingBuffer digests;              // of the device
  GrowingBuffer host_digests;
  GrowingBuffer payload;
};

class WeightDevice {
 public:
  // Borrows all. `kernels` are those of the module that `device` comes from.
  WeightDevice(Device& device, const DeviceKernels& kernels, Clock& clock = Clock::Real())
      : device_(device), kernels_(kernels), clock_(clock) {}

  Device& device() const { return device_; }
  const DeviceKernels& kernels() const { return kernels_; }
  Clock& clock() const { return clock_; }

  // Whatever reads the weights from now on runs behind the marks that these events have then. Borrowed; none: the
  // weights are there.
  void SetReady(std::vector<DeviceEvent*> events) EXCLUDES(mu_);
  Status WaitUntilReady(DeviceStream& stream) EXCLUDES(mu_);

  // A bench, one that was used before if there is any. Errors of the device.
  Result<std::unique_ptr<DeviceBench>> TakeBench() EXCLUDES(mu_);
  // Waits a while for what is enqueued there, so that nothing of the weights is read any more. A bench whose work does
  // not end is never used again, and its memory stays.
  //
  // DeadlineExceeded "device_deadline"; errors of the device
  Status GiveBack(std::unique_ptr<DeviceBench> bench) EXCLUDES(mu_);

  // Puts `entries` where kernels read them, behind what is enqueued on the bench: their address on the device.
  Result<const MoveEntry*> Upload(DeviceBench& bench, std::span<const MoveEntry> entries);
  // Copies boxes, which lie at addresses, once the weights are ready, and waits for the end. No target overlaps.
  //
  // DeadlineExceeded "device_deadline"; errors of the device
  Status Move(const BoxMoveTable& table, Deadline deadline);

 private:
  Device& device_;
  const DeviceKernels& kernels_;
  Clock& clock_;
  Mutex mu_;
  std::vector<DeviceEvent*> ready_ GUARDED_BY(mu_);
  std::vector<std::unique_ptr<DeviceBench>> idle_ GUARDED_BY(mu_);
};

// Those of `dialers` that carry what lies on `device`, or, where that is null, in host memory: frames in memory of a
// device take only what lies on it.
std::vector<TransportDialer*> DialersFor(const WeightDevice* device, const std::vector<TransportDialer*>& dialers);

}  // namespace bascule
