#include "engine_side/receive_plan.h"

#include <algorithm>
#include <numeric>

#include "bridge/bucket/bucket_format.h"

namespace bascule {
namespace {

// A receiver serves one trainer, or few that take turns.
constexpr std::size_t kCachedPlans = 4;

// The engine's own map says where a tensor lies in the live slot, and so where it goes in another one.
Status AddCarried(const Layout& engine_layout, ReceivePlan& receive) {
  if (receive.plan.carried.empty()) return OkStatus();
  ASSIGN_OR_RETURN(const Plan whole, MakePlan(PlainLayout(engine_layout.tensors), engine_layout, PlanOptions{}));
  for (const Bucket& bucket : whole.buckets) {
    CarriedPart part{.engine_rank = whole.routes[static_cast<std::size_t>(bucket.route)].engine_rank, .slices = {}};
    for (const Slice& slice : bucket.slices) {
      if (!IsCarried(receive.plan, slice.tensor)) continue;
      part.slices.push_back(slice);
      receive.carried_bytes += slice.payload_bytes;
    }
    if (!part.slices.empty()) receive.carried.push_back(std::move(part));
  }
  return OkStatus();
}

}  // namespace

ReceivePlan MakeReceivePlan(Plan plan) {
  ReceivePlan result;
  result.plan = std::move(plan);
  const std::vector<TensorSpec>& tensors = result.plan.tensors;
  for (const TensorSpec& tensor : tensors) result.keys.push_back(KeyOf(tensor));
  result.manifest_order.resize(tensors.size());
  std::iota(result.manifest_order.begin(), result.manifest_order.end(), std::size_t{0});
  std::sort(result.manifest_order.begin(), result.manifest_order.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  for (const Bucket& bucket : result.plan.buckets) {
    const std::int64_t frame_bytes = FrameBytes(std::ssize(bucket.slices), bucket.payload_bytes);
    result.largest_frame_bytes = std::max(result.largest_frame_bytes, frame_bytes);
  }
  return result;
}

Result<std::shared_ptr<const ReceivePlan>> ReceivePlanCache::PlanFor(const Layout& sender_layout,
                                                                     const PlanOptions& options) {
  // Checked here: a digest is only of a layout whose numbers are sane.
  RETURN_IF_ERROR(CheckLayout(sender_layout));
  const Hash256 sender = LayoutDigest(sender_layout);
  if (auto found = Find(sender, options)) return found;
  ASSIGN_OR_RETURN(Plan plan, MakePlan(sender_layout, engine_layout_, options));
  ReceivePlan receive = MakeReceivePlan(std::move(plan));
  RETURN_IF_ERROR(AddCarried(engine_layout_, receive));
  auto made = std::make_shared<const ReceivePlan>(std::move(receive));
  MutexLock lock(mu_);
  entries_.push_front(Entry{sender, options, made});
  if (entries_.size() > kCachedPlans) entries_.pop_back();
  return std::shared_ptr<const ReceivePlan>(std::move(made));
}

std::shared_ptr<const ReceivePlan> ReceivePlanCache::Find(const Hash256& sender, const PlanOptions& options) const {
  MutexLock lock(mu_);
  for (const Entry& entry : entries_) {
    if (entry.sender == sender && entry.options == options) return entry.plan;
  }
  return nullptr;
}

}  // namespace bascule
