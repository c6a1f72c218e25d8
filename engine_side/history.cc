#include "engine_side/history.h"

#include <cmath>

#include "base/error_text.h"

namespace bascule {
namespace {

bool IsFlip(const HistoryEntry& row) { return row.committed && row.kind != HistoryEntry::Kind::kInitial; }

double NearestRank(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

}  // namespace

void History::Add(HistoryEntry row) {
  if (IsFlip(row)) {
    ++flip_count_;
    stall_us_max_ = std::max(stall_us_max_, row.flip_stall_us);
  }
  row.why = WithShortText(row.why, kTextBytes);
  rows_.push_back(std::move(row));
  if (rows_.size() > kRows) rows_.pop_front();
}

StallSummary History::Stalls() const {
  std::vector<double> stalls;
  for (const HistoryEntry& row : rows_) {
    if (IsFlip(row)) stalls.push_back(row.flip_stall_us);
  }
  std::sort(stalls.begin(), stalls.end());
  return {flip_count_, NearestRank(stalls, 0.50), NearestRank(stalls, 0.99), stall_us_max_};
}

}  // namespace bascule
