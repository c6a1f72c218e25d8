// The captured graphs of decode steps, by what they hold: the addresses of all weights, and the number of rows. So a
// slot has a set of graphs of its own, and a flip between slots goes from set to set; where a flip is in place every
// address stays, and so do the graphs. Memory that a slot gets anew has other addresses, and the set of the old ones is
// dropped when it is the one that was used least recently of more than a replica has slots.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "device/stream.h"

namespace bascule {

class StepGraphs {
 public:
  using Addresses = std::vector<const std::byte*>;
  static constexpr std::size_t kMostSets = 3;  // as there are slots, at most

  // Null: none has been captured. No launch of another set's graph is under way.
  DeviceGraph* Find(const Addresses& weights, std::int64_t rows);
  // To the set of the Find before.
  void Add(std::int64_t rows, std::unique_ptr<DeviceGraph> graph);
  std::size_t count() const;  // of all sets

 private:
  struct Set {
    Addresses weights;
    std::map<std::int64_t, std::unique_ptr<DeviceGraph>> by_rows;
  };
  std::list<Set> sets_;  // the one used last is first
};

}  // namespace bascule
