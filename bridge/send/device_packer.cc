#include "bridge/send/device_packer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace bascule {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(50);  // between looks whether to stop

}  // namespace

DevicePacker::DevicePacker(const BucketPacker& packer, WeightDevice& device, Deadline deadline, std::stop_token stop)
    : packer_(packer), device_(device), deadline_(deadline), stop_(std::move(stop)) {}

DevicePacker::~DevicePacker() {
  for (Place& place : places_) {
    if (place.bench != nullptr) static_cast<void>(device_.GiveBack(std::move(place.bench)));
  }
}

bool DevicePacker::HasRoom() const {
  return std::ranges::count_if(places_, [](const Place& place) { return !place.busy; }) > 1;
}

Result<int> DevicePacker::Begin(std::uint32_t bucket, std::span<std::byte> target) {
  const auto place = std::ranges::find_if(places_, [](const Place& p) { return !p.busy; });
  CHECK(place != places_.end());
  if (place->bench == nullptr) {
    ASSIGN_OR_RETURN(place->bench, device_.TakeBench());
  }
  place->carries = target.empty();
  RETURN_IF_ERROR(Enqueue(*place->bench, bucket, target));
  place->busy = true;
  return static_cast<int>(place - places_.begin());
}

Status DevicePacker::Enqueue(DeviceBench& bench, std::uint32_t bucket, std::span<std::byte> target) {
  Device& device = device_.device();
  ASSIGN_OR_RETURN(const BoxMoveTable table, packer_.TableOf(bucket));
  const std::size_t digest_bytes = table.entries().size() * sizeof(TensorDigest);
  ASSIGN_OR_RETURN(const std::span<std::byte> digests, bench.digests.Take(device.memory(), digest_bytes));
  ASSIGN_OR_RETURN(const std::span<std::byte> host_digests,
                   bench.host_digests.Take(device.pinned_memory(), digest_bytes));
  if (target.empty()) {
    const auto payload_bytes = static_cast<std::size_t>(packer_.PayloadBytesOf(bucket));
    ASSIGN_OR_RETURN(target, bench.payload.Take(device.pinned_memory(), payload_bytes));
  }
  ASSIGN_OR_RETURN(const MoveEntry* const entries, device_.Upload(bench, table.entries()));
  RETURN_IF_ERROR(bench.stream->Fill(digests, std::byte{0}));
  RETURN_IF_ERROR(device_.WaitUntilReady(*bench.stream));
  RETURN_IF_ERROR(
      device_.kernels().move_and_digest_boxes({.entries = entries,
                                               .entry_count = static_cast<std::int64_t>(table.entries().size()),
                                               .tiles = table.tiles(),
                                               .target_base = reinterpret_cast<std::uint64_t>(target.data()),
                                               .digests = reinterpret_cast<TensorDigest*>(digests.data())},
                                              bench.stream->handle()));
  RETURN_IF_ERROR(bench.stream->Copy(host_digests, digests));
  return bench.stream->Record(*bench.done);
}

Status DevicePacker::Finish(int place, std::span<const Frame> frames, std::span<TensorDigest> totals) {
  Place& packed = places_[static_cast<std::size_t>(place)];
  const DeviceBench& bench = *packed.bench;
  RETURN_IF_ERROR(AwaitPacked(*packed.bench));
  const auto slices = static_cast<std::size_t>(packer_.SliceCountOf(frames.front().header.bucket));
  std::vector<TensorDigest> digests(slices);
  if (slices > 0)
    std::memcpy(static_cast<void*>(digests.data()), bench.host_digests.bytes().data(), slices * sizeof(TensorDigest));
  const std::span<const std::byte> payload = packed.carries ? bench.payload.bytes() : std::span<std::byte>();
  for (const Frame& frame : frames) packer_.Seal(frame.header, digests, payload, frame.bytes, totals);
  packed.busy = false;
  return OkStatus();
}

Status DevicePacker::AwaitPacked(DeviceBench& bench) const {
  Clock& clock = device_.clock();
  while (true) {
    if (stop_.stop_requested()) return Status::Cancelled("cancelled");
    const Status packed = AwaitEvent(*bench.done, std::min(deadline_, Deadline::After(clock, kLook)), clock);
    if (packed.reason() != "device_deadline" || deadline_.Passed(clock)) return packed;
  }
}

}  // namespace bascule
