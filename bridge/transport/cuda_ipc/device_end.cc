#include "bridge/transport/cuda_ipc/device_end.h"

#include <unistd.h>

#include <cstring>
#include <map>
#include <random>

#include "base/mutex.h"

namespace bascule {
namespace {

// Copies of whole frames begin where the device likes it best.
constexpr std::int64_t kFrameAlignment = 256;

std::int64_t Stride(std::int64_t frame_bytes) {
  return (frame_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

// The process id tells a forked child from its parent, the number tells containers apart that use the same ids.
std::array<std::uint8_t, 16> ThisProcess() {
  static const std::uint64_t number = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  const std::uint64_t id = static_cast<std::uint64_t>(getpid());
  std::array<std::uint8_t, 16> process{};
  std::memcpy(process.data(), &id, sizeof id);
  std::memcpy(process.data() + sizeof id, &number, sizeof number);
  return process;
}

// The ends that this process made, for the other end in the same process.
struct EndsHere {
  Mutex mu;
  std::map<std::uint64_t, std::weak_ptr<DeviceEnd>> ends GUARDED_BY(mu);
  std::uint64_t next GUARDED_BY(mu) = 1;

  static EndsHere& Get() {
    static auto* const ends = new EndsHere;
    return *ends;
  }
};

}  // namespace

Result<std::shared_ptr<DeviceEnd>> DeviceEnd::Make(Device& device, std::int64_t frame_bytes, std::int32_t credits) {
  const std::shared_ptr<DeviceEnd> end(new DeviceEnd(/*is_own=*/true, frame_bytes));
  end->name_.device = device.description().uuid.bytes;
  end->name_.process = ThisProcess();
  if (frame_bytes > 0) {
    end->name_.memory_bytes = static_cast<std::uint64_t>(Stride(frame_bytes) * credits);
    ASSIGN_OR_RETURN(end->memory_, device.memory().Allocate(end->name_.memory_bytes));
    ASSIGN_OR_RETURN(const ExportedMemory exported, device.Export(end->memory_->bytes()));
    CHECK(exported.offset == 0);
    end->name_.memory = exported.handle;
  }
  for (std::int32_t i = 0; i < credits; ++i) {
    ASSIGN_OR_RETURN(SharedEvent mark, device.MakeSharedEvent());
    end->marks_.push_back(std::move(mark.event));
    end->name_.marks.at(static_cast<std::size_t>(i)) = mark.handle;
  }
  EndsHere& here = EndsHere::Get();
  const MutexLock lock(here.mu);
  end->name_.end = here.next++;
  here.ends.emplace(end->name_.end, end);
  return end;
}

Result<std::shared_ptr<DeviceEnd>> DeviceEnd::FindHere(const DeviceEndName& name) {
  EndsHere& here = EndsHere::Get();
  const MutexLock lock(here.mu);
  const auto found = here.ends.find(name.end);
  std::shared_ptr<DeviceEnd> end = found == here.ends.end() ? nullptr : found->second.lock();
  if (end == nullptr) return Status::Unavailable("peer_lost", "the other end, in this process, is gone");
  return end;
}

Result<std::shared_ptr<DeviceEnd>> DeviceEnd::Open(Device& device, const DeviceEndName& name, std::int64_t frame_bytes,
                                                   std::int32_t credits) {
  const auto needed = static_cast<std::uint64_t>(Stride(frame_bytes) * credits);
  if (name.memory_bytes < needed) {
    return Status::InvalidArgument("bad_memory_handle", fmt::format("{} bytes, want {}", name.memory_bytes, needed));
  }
  const DeviceUuid& own = device.description().uuid;
  const std::string there = DeviceUuid{name.device}.ToString();
  if (name.process == ThisProcess()) {
    if (name.device == own.bytes) return FindHere(name);
    return Status::FailedPrecondition(
        "other_device", fmt::format("{} and {}, of one process: only opening makes them peers", there, own.ToString()));
  }
  auto opened = OpenFar(device, name, frame_bytes, credits);
  if (opened.ok() || name.device == own.bytes) return opened;
  return opened.status().WithContext("on " + there);
}

// CUDA makes peers of devices that are not the same.
Result<std::shared_ptr<DeviceEnd>> DeviceEnd::OpenFar(Device& device, const DeviceEndName& name,
                                                      std::int64_t frame_bytes, std::int32_t credits) {
  const std::shared_ptr<DeviceEnd> end(new DeviceEnd(/*is_own=*/false, frame_bytes));
  end->name_ = name;
  if (frame_bytes > 0) {
    ASSIGN_OR_RETURN(end->memory_, device.OpenMemory(name.memory, Stride(frame_bytes) * credits));
  }
  for (std::int32_t i = 0; i < credits; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceEvent> mark, device.OpenEvent(name.marks.at(static_cast<std::size_t>(i))));
    end->marks_.push_back(std::move(mark));
  }
  return end;
}

DeviceEnd::~DeviceEnd() {
  if (!is_own_) return;
  EndsHere& here = EndsHere::Get();
  const MutexLock lock(here.mu);
  here.ends.erase(name_.end);
}

std::span<std::byte> DeviceEnd::frame(std::uint64_t index) const {
  return memory_->bytes().subspan(index * static_cast<std::uint64_t>(Stride(frame_bytes_)),
                                  static_cast<std::size_t>(frame_bytes_));
}

Status DeviceEnd::Settle(Deadline deadline, Clock& clock) const {
  for (const std::unique_ptr<DeviceEvent>& event : marks_) {
    RETURN_IF_ERROR(AwaitEvent(*event, deadline, clock));
  }
  return OkStatus();
}

}  // namespace bascule
