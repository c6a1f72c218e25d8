#include "bridge/transport/nccl/device_frames.h"

#include <list>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"

namespace bascule {
namespace {

// Kernels like whole lines of a device's cache.
constexpr std::int64_t kFrameAlignment = 256;
// How long work on frames that nobody wants any more is waited for. By the real clock: the device knows no other.
constexpr Duration kPatience = std::chrono::seconds(2);

std::int64_t Stride(std::int64_t frame_bytes) {
  return (frame_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

}  // namespace

Result<std::unique_ptr<DeviceFrames>> DeviceFrames::Make(Device& device, std::int64_t frame_bytes,
                                                         std::int32_t credits) {
  std::unique_ptr<DeviceFrames> frames(new DeviceFrames(frame_bytes));
  ASSIGN_OR_RETURN(frames->memory_, device.memory().Allocate(static_cast<std::size_t>(Stride(frame_bytes) * credits)));
  for (std::int32_t i = 0; i < credits; ++i) {
    for (auto* const marks : {&frames->used_, &frames->moved_}) {
      ASSIGN_OR_RETURN(std::unique_ptr<DeviceEvent> mark, device.MakeEvent());
      marks->push_back(std::move(mark));
    }
  }
  return frames;
}

std::span<std::byte> DeviceFrames::frame(std::uint32_t index) const {
  return memory_->bytes().subspan(index * static_cast<std::size_t>(Stride(frame_bytes_)),
                                  static_cast<std::size_t>(frame_bytes_));
}

Status DeviceFrames::Settle() const {
  const Deadline deadline = Deadline::After(Clock::Real(), kPatience);
  for (const auto* const marks : {&used_, &moved_}) {
    for (const std::unique_ptr<DeviceEvent>& mark : *marks) RETURN_IF_ERROR(AwaitEvent(*mark, deadline, Clock::Real()));
  }
  return OkStatus();
}

void DeviceFrames::Release(std::unique_ptr<DeviceFrames> frames, const Status& links) {
  const Status why = links.ok() ? frames->Settle() : links;
  if (why.ok()) return;
  LogWarn("device_memory_kept", "bytes={} why=\"{}\"", frames->all().size(), why.ToString());
  static auto* const mu = new Mutex;
  static auto* const kept = new std::list<std::unique_ptr<DeviceFrames>>;
  const MutexLock lock(*mu);
  kept->push_back(std::move(frames));
}

}  // namespace bascule
