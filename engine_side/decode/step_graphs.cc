#include "engine_side/decode/step_graphs.h"

#include <algorithm>
#include <utility>

namespace bascule {

DeviceGraph* StepGraphs::Find(const Addresses& weights, std::int64_t rows) {
  const auto found = std::ranges::find(sets_, weights, &Set::weights);
  if (found == sets_.end()) {
    sets_.push_front({.weights = weights, .by_rows = {}});
    if (sets_.size() > kMostSets) sets_.pop_back();
    return nullptr;
  }
  sets_.splice(sets_.begin(), sets_, found);
  const auto graph = sets_.front().by_rows.find(rows);
  return graph == sets_.front().by_rows.end() ? nullptr : graph->second.get();
}

void StepGraphs::Add(std::int64_t rows, std::unique_ptr<DeviceGraph> graph) {
  sets_.front().by_rows[rows] = std::move(graph);
}

std::size_t StepGraphs::count() const {
  std::size_t count = 0;
  for (const Set& set : sets_) count += set.by_rows.size();
  return count;
}

}  // namespace bascule
