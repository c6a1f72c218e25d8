#include "trainer_side/gather/gather_plan.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 64;

}  // namespace

Result<GatherPlan> GatherPlan::Make(const Layout& trainer, const std::vector<TensorSpec>& wire,
                                    const PlanOptions& options, PlanCache& plans) {
  GatherPlan made;
  made.full_ = PlainLayout(wire);
  made.options_ = options;
  ASSIGN_OR_RETURN(made.plan_, plans.PlanFor(trainer, made.full_, options));
  made.PlaceTensors();
  made.CountBuckets();
  return made;
}

void GatherPlan::PlaceTensors() {
  const std::vector<TensorSpec>& tensors = plan_->tensors;
  window_of_ = WindowsOf(tensors, options_.window_bytes);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto tensor = static_cast<std::int32_t>(t);
    by_name_.emplace(tensors[t].name, tensor);
    if (windows_.empty() || window_of_[t] != window_of_[t - 1]) windows_.push_back({.first_tensor = tensor});
    GatherWindow& window = windows_.back();
    ++window.tensor_count;
    offset_of_.push_back(window.bytes);
    window.bytes = RoundUp(window.bytes + tensors[t].Bytes(), kTensorAlignment);
  }
}

void GatherPlan::CountBuckets() {
  for (const Bucket& bucket : plan_->buckets) {
    ++windows_[static_cast<std::size_t>(WindowOf(bucket.slices.front().tensor))].bucket_count;
  }
  std::uint32_t next = 0;
  for (GatherWindow& window : windows_) {
    window.first_bucket = next;
    next += window.bucket_count;
  }
}

std::int64_t GatherPlan::largest_window_bytes() const {
  std::int64_t largest = 0;
  for (const GatherWindow& window : windows_) largest = std::max(largest, window.bytes);
  return largest;
}

std::optional<std::int32_t> GatherPlan::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

}  // namespace bascule
