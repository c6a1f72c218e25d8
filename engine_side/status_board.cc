#include "engine_side/status_board.h"

namespace bascule {

StatusBoard::~StatusBoard() {
  MutexLock lock(mu_);
  closing_ = true;
  changed_.NotifyAll();
  while (waiting_ > 0) clock_.WaitUntil(changed_, mu_, clock_.Now() + std::chrono::seconds(1));
}

void StatusBoard::Changed() {
  ++mark_;
  changed_.NotifyAll();
}

void StatusBoard::SessionOpened(const SessionProgress& session) {
  MutexLock lock(mu_);
  session_ = session;
  Changed();
}

void StatusBoard::SessionMoved(SessionState state, const WeightVersion& version) {
  MutexLock lock(mu_);
  if (!session_) return;
  session_->state = state;
  session_->version = version;
  Changed();
}

void StatusBoard::BytesReceived(std::int64_t bytes) {
  MutexLock lock(mu_);
  if (session_) session_->received_bytes += bytes;
}

void StatusBoard::SessionFailed(Status why, std::optional<HistoryEntry> row) {
  MutexLock lock(mu_);
  session_.reset();
  last_error_ = std::move(why);
  if (row) {
    row->at = clock_.WallNow();
    history_.Add(*std::move(row));
  }
  Changed();
}

void StatusBoard::Flipped(HistoryEntry row) {
  MutexLock lock(mu_);
  if (row.kind != HistoryEntry::Kind::kRollback) session_.reset();
  row.at = clock_.WallNow();
  live_since_ = row.at;
  live_run_ = row.version.run;
  if (seen_run_ != live_run_) {
    seen_run_ = live_run_;
    newest_seen_ = 0;
  }
  newest_seen_ = std::max(newest_seen_, row.version.number);
  history_.Add(std::move(row));
  Changed();
}

void StatusBoard::Offered(const std::string& run, std::uint64_t number) {
  MutexLock lock(mu_);
  if (run == seen_run_) newest_seen_ = std::max(newest_seen_, number);
}

ReceiverStatus StatusBoard::Read() const {
  MutexLock lock(mu_);
  const StallSummary stalls = history_.Stalls();
  ReceiverStatus status;
  status.live_since = live_since_;
  status.session = session_;
  status.last_error = last_error_;
  status.flip_count = stalls.flip_count;
  status.stall_us_p50 = stalls.us_p50;
  status.stall_us_p99 = stalls.us_p99;
  status.stall_us_max = stalls.us_max;
  status.newest_seen = newest_seen_;
  return status;
}

std::vector<HistoryEntry> StatusBoard::Rows() const {
  MutexLock lock(mu_);
  return history_.Rows();
}

Result<std::uint64_t> StatusBoard::WaitForChange(std::uint64_t seen, Deadline deadline) const {
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
  return mark_;
}

}  // namespace bascule
