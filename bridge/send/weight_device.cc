#include "bridge/send/weight_device.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "bridge/transport/transport.h"

namespace bascule {
namespace {

constexpr Duration kSettlePatience = std::chrono::seconds(5);

// Work that does not end may still read and write what the bench has.
void KeepForEver(std::unique_ptr<DeviceBench> bench) {
  static auto* const mu = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<DeviceBench>>;
  const MutexLock lock(*mu);
  kept->push_back(std::move(bench));
}

}  // namespace

Result<std::span<std::byte>> GrowingBuffer::Take(DeviceMemory& memory, std::size_t bytes) {
  if (buffer_ == nullptr || buffer_->bytes().size() < bytes) {
    buffer_.reset();  // both at once might not fit
    ASSIGN_OR_RETURN(buffer_, memory.Allocate(std::bit_ceil(bytes)));
  }
  return buffer_->bytes().first(bytes);
}

void WeightDevice::SetReady(std::vector<DeviceEvent*> events) {
  const MutexLock lock(mu_);
  ready_ = std::move(events);
}

Status WeightDevice::WaitUntilReady(DeviceStream& stream) {
  const MutexLock lock(mu_);
  for (DeviceEvent* const event : ready_) RETURN_IF_ERROR(stream.WaitFor(*event));
  return OkStatus();
}

Result<std::unique_ptr<DeviceBench>> WeightDevice::TakeBench() {
  {
    const MutexLock lock(mu_);
    if (!idle_.empty()) {
      std::unique_ptr<DeviceBench> bench = std::move(idle_.back());
      idle_.pop_back();
      return bench;
    }
  }
  auto bench = std::make_unique<DeviceBench>();
  ASSIGN_OR_RETURN(bench->stream, device_.MakeStream(StreamPriority::kNormal));
  ASSIGN_OR_RETURN(bench->done, device_.MakeEvent());
  return bench;
}

Status WeightDevice::GiveBack(std::unique_ptr<DeviceBench> bench) {
  Status settled = bench->stream->Record(*bench->done);
  if (settled.ok()) settled = AwaitEvent(*bench->done, Deadline::After(clock_, kSettlePatience), clock_);
  if (!settled.ok()) {
    LogWarn("device_memory_kept", "device={} why=\"{}\"", device_.description().uuid.ToString(), settled.ToString());
    KeepForEver(std::move(bench));
    return settled;
  }
  const MutexLock lock(mu_);
  idle_.push_back(std::move(bench));
  return settled;
}

Result<const MoveEntry*> WeightDevice::Upload(DeviceBench& bench, std::span<const MoveEntry> entries) {
  const std::span<const std::byte> from = std::as_bytes(entries);
  ASSIGN_OR_RETURN(const std::span<std::byte> pinned, bench.host_table.Take(device_.pinned_memory(), from.size()));
  ASSIGN_OR_RETURN(const std::span<std::byte> table, bench.table.Take(device_.memory(), from.size()));
  if (!from.empty()) std::memcpy(pinned.data(), from.data(), from.size());
  RETURN_IF_ERROR(bench.stream->Copy(table, pinned));
  return reinterpret_cast<const MoveEntry*>(table.data());
}

Status WeightDevice::Move(const BoxMoveTable& table, Deadline deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBench> bench, TakeBench());
  const auto move = [&]() -> Status {
    ASSIGN_OR_RETURN(const MoveEntry* const entries, Upload(*bench, table.entries()));
    RETURN_IF_ERROR(WaitUntilReady(*bench->stream));
    RETURN_IF_ERROR(kernels_.move_boxes(
        {.entries = entries, .entry_count = static_cast<std::int64_t>(table.entries().size()), .tiles = table.tiles()},
        bench->stream->handle()));
    RETURN_IF_ERROR(bench->stream->Record(*bench->done));
    return AwaitEvent(*bench->done, deadline, clock_);
  };
  const Status moved = move();
  const Status settled = GiveBack(std::move(bench));
  return moved.ok() ? settled : moved;
}

std::vector<TransportDialer*> DialersFor(const WeightDevice* device, const std::vector<TransportDialer*>& dialers) {
  std::vector<TransportDialer*> usable;
  std::ranges::copy_if(dialers, std::back_inserter(usable), [device](const TransportDialer* dialer) {
    return dialer->device() == nullptr || (device != nullptr && dialer->device() == &device->device());
  });
  return usable;
}

}  // namespace bascule
