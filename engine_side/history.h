// What a receiver has done, oldest first; the newest rows are kept.
//
// Thread-safety: thread-compatible.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/status.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

// One row: an opened session, a rollback, or the first load.
struct HistoryEntry {
  WeightVersion version;
  enum class Kind { kInitial, kFull, kRollback } kind = Kind::kFull;
  bool committed = false;
  bool refused = false;  // a rollback: what was live before it is not kept
  Status why;            // of an abort
  std::chrono::system_clock::time_point at;
  std::int64_t bytes = 0;          // received
  std::int64_t carried_bytes = 0;  // copied from the version before: a partial one
  double stage_ms = 0;
  double verify_ms = 0;
  double flip_stall_us = 0;
};

struct StallSummary {
  std::uint64_t flip_count = 0;  // flips and rollbacks, not the initial load
  double us_p50 = 0, us_p99 = 0, us_max = 0;
};

class History {
 public:
  static constexpr std::size_t kRows = 10'000;
  static constexpr std::size_t kTextBytes = 1024;  // of each row's error

  void Add(HistoryEntry row);
  std::vector<HistoryEntry> Rows() const { return {rows_.begin(), rows_.end()}; }
  // Percentiles are over the flips among the kept rows, by nearest rank.
  StallSummary Stalls() const;

 private:
  std::deque<HistoryEntry> rows_;
  std::uint64_t flip_count_ = 0;
  double stall_us_max_ = 0;
};

}  // namespace bascule
