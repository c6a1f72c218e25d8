#include "engine_side/status_board.h"

#include <algorithm>

#include "base/error_text.h"

namespace bascule {
namespace {

bool IsVersion(const WeightVersion& version, const WeightVersion& wanted) {
  const bool same_bytes = wanted.digest.IsZero() || version.digest == wanted.digest;
  return version.run == wanted.run && version.number == wanted.number && same_bytes;
}

}  // namespace

StatusBoard::StatusBoard(const WeightSlots& slots, Clock& clock) : slots_(slots), clock_(clock) {
  MutexLock lock(mu_);
  for (std::size_t r = 0; r < slots_.layout().ranks.size(); ++r) {
    status_.slot_bytes.push_back(slots_.slot_bytes(static_cast<int>(r)));
  }
  recent_.push_back(status_);
}

StatusBoard::~StatusBoard() {
  MutexLock lock(mu_);
  closing_ = true;
  changed_.NotifyAll();
  while (waiting_ > 0) clock_.WaitUntil(changed_, mu_, clock_.Now() + std::chrono::seconds(1));
}

void StatusBoard::Changed() {
  status_.live = slots_.live();
  status_.kept = slots_.kept();
  recent_.push_back(status_);
  if (recent_.size() > kRecent) recent_.pop_front();
  ++mark_;
  changed_.NotifyAll();
}

void StatusBoard::SessionOpened(const SessionProgress& session) {
  MutexLock lock(mu_);
  status_.session = session;
  Changed();
}

void StatusBoard::SessionMoved(SessionState state, const WeightVersion& version) {
  MutexLock lock(mu_);
  if (!status_.session) return;
  status_.session->state = state;
  status_.session->version = version;
  Changed();
}

void StatusBoard::BytesReceived(std::int64_t bytes) {
  MutexLock lock(mu_);
  if (status_.session) status_.session->received_bytes += bytes;
}

void StatusBoard::SessionFailed(const Status& why, std::optional<HistoryEntry> row) {
  MutexLock lock(mu_);
  status_.session.reset();
  status_.last_error = WithShortText(why, kTextBytes);
  if (row) {
    row->at = clock_.WallNow();
    history_.Add(*std::move(row));
  }
  Changed();
}

void StatusBoard::Flipped(HistoryEntry row) {
  MutexLock lock(mu_);
  if (row.kind != HistoryEntry::Kind::kRollback) status_.session.reset();
  row.at = clock_.WallNow();
  status_.live_since = row.at;
  if (seen_run_ != row.version.run) {
    seen_run_ = row.version.run;
    status_.newest_seen = 0;
  }
  status_.newest_seen = std::max(status_.newest_seen, row.version.number);
  if (Satisfied(row)) status_.required.reset();
  history_.Add(std::move(row));
  const StallSummary stalls = history_.Stalls();
  status_.flip_count = stalls.flip_count;
  status_.stall_us_p50 = stalls.us_p50;
  status_.stall_us_p99 = stalls.us_p99;
  status_.stall_us_max = stalls.us_max;
  Changed();
}

void StatusBoard::Offered(const std::string& run, std::uint64_t number) {
  MutexLock lock(mu_);
  if (run == seen_run_) status_.newest_seen = std::max(status_.newest_seen, number);
}

void StatusBoard::Require(const WeightVersion& version) {
  MutexLock lock(mu_);
  RequireLocked(version);
}

// A flip that comes between this look and what follows posts itself after it, and settles what was required.
void StatusBoard::RequireInPlaceOf(const std::optional<WeightVersion>& live, const WeightVersion& version) {
  MutexLock lock(mu_);
  if (slots_.live() == live) RequireLocked(version);
}

void StatusBoard::RequireLocked(const WeightVersion& version) {
  if (version.run == seen_run_) status_.newest_seen = std::max(status_.newest_seen, version.number);
  const std::optional<WeightVersion> live = slots_.live();
  std::optional<WeightVersion> required;
  if (!live || !IsVersion(*live, version)) required = version;
  if (status_.required == required) return;
  status_.required = std::move(required);
  Changed();
}

bool StatusBoard::Satisfied(const HistoryEntry& row) const {
  if (!status_.required || IsVersion(row.version, *status_.required)) return true;
  if (row.kind == HistoryEntry::Kind::kRollback) return false;
  return row.version.run != status_.required->run || row.version.number > status_.required->number;
}

ReceiverStatus StatusBoard::Read() const {
  MutexLock lock(mu_);
  return status_;
}

std::vector<HistoryEntry> StatusBoard::Rows() const {
  MutexLock lock(mu_);
  return history_.Rows();
}

Result<StatusChanges> StatusBoard::ChangesSince(std::uint64_t seen, Deadline deadline) const {
  MutexLock lock(mu_);
  ++waiting_;
  bool in_time = true;
  while (mark_ == seen && !closing_ && in_time) in_time = clock_.WaitUntil(changed_, mu_, deadline.point());
  --waiting_;
  if (closing_) {
    changed_.NotifyAll();
    return Status::Cancelled("cancelled", "the receiver ends");
  }
  if (mark_ == seen) return Status::DeadlineExceeded("deadline", "nothing changed in time");
  const std::uint64_t missed = seen == 0 || seen > mark_ ? 1 : mark_ - seen;
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(missed, recent_.size()));
  return StatusChanges{mark_, {recent_.end() - count, recent_.end()}};
}

}  // namespace bascule
