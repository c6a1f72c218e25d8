#include "engine_side/lent_copy.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/worker.h"
#include "engine_side/weight_slots.h"

namespace bascule {
namespace {

constexpr int kThreads = 4;  // as there are lanes of a device: one gathers while others wait for their copies

// Where the slices of a bucket lie in what is lent.
std::vector<BoxView> ViewsOf(const ReceivePlan& plan, const Layout& engine_layout, const LentMemory& lent,
                             const Bucket& bucket) {
  const int engine_rank = plan.engine_rank(bucket);
  const auto rank = static_cast<std::size_t>(engine_rank);
  const std::byte* const memory = std::as_const(*lent.ranks[rank]).bytes().data();
  const std::vector<std::int64_t> offsets = WeightSlots::TensorOffsets(engine_layout.ranks[rank]);
  std::vector<BoxView> views;
  views.reserve(bucket.slices.size());
  for (const Slice& slice : bucket.slices) {
    views.push_back({memory + offsets[static_cast<std::size_t>(slice.engine_tensor)],
                     BoxOfSlice(plan, engine_layout, slice, engine_rank, slice.logical_box).place, nullptr});
  }
  return views;
}

}  // namespace

Status CopyLent(const ReceivePlan& plan, const Layout& engine_layout, const LentMemory& lent, const Staging& staging,
                Verifier& verifier, const std::function<bool()>& wanted) {
  const std::vector<Bucket>& buckets = plan.plan.buckets;
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> stopped = false;
  const auto copy = [&](std::size_t b) -> Status {
    if (!wanted()) return Status::Cancelled("cancelled", "the session ended while lent memory was copied");
    ASSIGN_OR_RETURN(
        std::vector<TensorDigest> digests,
        staging.PlaceAndDigest(buckets[b], ViewsOf(plan, engine_layout, lent, buckets[b]), FrameMemory::kHost));
    verifier.Note(static_cast<std::uint32_t>(b), std::move(digests));
    return OkStatus();
  };
  std::vector<Status> ended(std::min<std::size_t>(kThreads, buckets.size()));
  {
    std::vector<Worker> workers;
    for (Status& end : ended) {
      workers.emplace_back("lent_copy", [&](std::stop_token) {
        for (std::size_t b = next++; b < buckets.size() && !stopped && end.ok(); b = next++) end = copy(b);
        if (!end.ok()) stopped = true;
      });
    }
  }
  for (const Status& end : ended) RETURN_IF_ERROR(end);
  return OkStatus();
}

}  // namespace bascule
