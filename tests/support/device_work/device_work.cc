#include "tests/support/device_work/device_work.h"

#include <cstring>

namespace bascule {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);

}  // namespace

Status Drain(Device& device, DeviceStream& stream) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceEvent> done, device.MakeEvent());
  RETURN_IF_ERROR(stream.Record(*done));
  return AwaitEvent(*done, Deadline::After(Clock::Real(), kPatience), Clock::Real());
}

Status WriteDevice(Device& device, std::span<std::byte> to, std::span<const std::byte> from) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceBuffer> pinned, device.pinned_memory().Allocate(from.size()));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device.MakeStream(StreamPriority::kNormal));
  std::memcpy(pinned->bytes().data(), from.data(), from.size());
  RETURN_IF_ERROR(stream->Copy(to, pinned->bytes()));
  return Drain(device, *stream);
}

Result<std::vector<std::byte>> ReadDevice(Device& device, std::span<const std::byte> from) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceBuffer> pinned, device.pinned_memory().Allocate(from.size()));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device.MakeStream(StreamPriority::kNormal));
  RETURN_IF_ERROR(stream->Copy(pinned->bytes(), from));
  RETURN_IF_ERROR(Drain(device, *stream));
  return std::vector<std::byte>(pinned->bytes().begin(), pinned->bytes().end());
}

}  // namespace bascule
