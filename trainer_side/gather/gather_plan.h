// How full tensors come together on one trainer rank: window by window, each of them one tensor or a few small
// neighbours. The plan towards the engines is cut at the same windows (PlanOptions::window_bytes), so that one window
// in memory serves both.
//
// Thread-safety: thread-compatible (a value); read-only once made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "bridge/send/plan_cache.h"

namespace bascule {

struct GatherWindow {
  std::int32_t first_tensor = 0;  // of Plan::tensors
  std::int32_t tensor_count = 0;
  std::uint32_t first_bucket = 0;  // of Plan::buckets
  std::uint32_t bucket_count = 0;
  std::int64_t bytes = 0;  // its tensors in memory, one after another
};

class GatherPlan {
 public:
  // `trainer` shows what every trainer rank holds; `wire` are the tensors as the engines take them. `options` are those
  // of the plan towards the engines. Fails as MakePlan.
  static Result<GatherPlan> Make(const Layout& trainer, const std::vector<TensorSpec>& wire, const PlanOptions& options,
                                 PlanCache& plans);

  // Trainer ranks to one rank that holds every tensor whole.
  const Plan& plan() const { return *plan_; }
  const Layout& full() const { return full_; }
  const PlanOptions& options() const { return options_; }
  const std::vector<GatherWindow>& windows() const { return windows_; }
  std::int64_t largest_window_bytes() const;

  // Of a tensor of the plan: its number by name; its window; its place there.
  std::optional<std::int32_t> Find(const std::string& name) const;
  std::int32_t WindowOf(std::int32_t tensor) const { return window_of_[static_cast<std::size_t>(tensor)]; }
  std::int64_t OffsetOf(std::int32_t tensor) const { return offset_of_[static_cast<std::size_t>(tensor)]; }

 private:
  void PlaceTensors();
  void CountBuckets();

  Layout full_;
  PlanOptions options_;
  std::shared_ptr<const Plan> plan_;  // shared with the cache
  std::vector<GatherWindow> windows_;
  std::vector<std::int32_t> window_of_;
  std::vector<std::int64_t> offset_of_;
  std::unordered_map<std::string, std::int32_t> by_name_;
};

}  // namespace bascule
