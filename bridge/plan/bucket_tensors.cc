#include "bridge/plan/bucket_tensors.h"

#include <vector>

#include "bridge/plan/nearest_name.h"

namespace bascule {

std::string TensorsIn(const Plan& plan, std::span<const std::uint32_t> buckets) {
  std::vector<bool> has_part(plan.tensors.size());
  for (const std::uint32_t bucket : buckets) {
    for (const Slice& slice : plan.buckets[bucket].slices) has_part[static_cast<std::size_t>(slice.tensor)] = true;
  }
  std::vector<std::string> names;
  for (std::size_t t = 0; t < has_part.size(); ++t) {
    if (has_part[t]) names.push_back(plan.tensors[t].name);
  }
  return FirstOf(names);
}

}  // namespace bascule
