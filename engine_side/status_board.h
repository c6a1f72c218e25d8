// What a receiver shows of itself: the open session, what is live since when, the history, the last error. Sessions and
// flips post here; whoever asks reads here and may wait for a change. Each change is one status, which is kept for a
// while: whoever follows them misses none, however short it was.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "bridge/session/session_state.h"
#include "engine_side/history.h"
#include "engine_side/weight_receiver.h"
#include "engine_side/weight_slots.h"

namespace bascule {

class StatusBoard {
 public:
  // What is live and kept comes from `slots`, which are borrowed.
  StatusBoard(const WeightSlots& slots, Clock& clock);
  ~StatusBoard();  // wakes who waits for a change ("cancelled") and lets them go

  void SessionOpened(const SessionProgress& session) EXCLUDES(mu_);
  void SessionMoved(SessionState state, const WeightVersion& version) EXCLUDES(mu_);
  void BytesReceived(std::int64_t bytes) EXCLUDES(mu_);
  // The open session is over without a flip. Without a `row` it was refused before its acceptance.
  void SessionFailed(const Status& why, std::optional<HistoryEntry> row) EXCLUDES(mu_);
  // A flip or rollback has happened; a flip also ends the open session.
  void Flipped(HistoryEntry row) EXCLUDES(mu_);
  // Staleness is the highest number offered in the live run less the live number.
  void Offered(const std::string& run, std::uint64_t number) EXCLUDES(mu_);

  // See WeightReceiver::Require.
  void Require(const WeightVersion& version) EXCLUDES(mu_);
  void RequireInPlaceOf(const std::optional<WeightVersion>& live, const WeightVersion& version) EXCLUDES(mu_);

  ReceiverStatus Read() const EXCLUDES(mu_);
  std::vector<HistoryEntry> Rows() const EXCLUDES(mu_);
  // See WeightReceiver::ChangesSince.
  Result<StatusChanges> ChangesSince(std::uint64_t seen, Deadline deadline) const EXCLUDES(mu_);

 private:
  static constexpr std::size_t kRecent = 256;
  static constexpr std::size_t kTextBytes = 4096;  // of the last error, in each of these

  void Changed() REQUIRES(mu_);
  void RequireLocked(const WeightVersion& version) REQUIRES(mu_);
  // Is what was required live, or replaced by a version that was committed after it was?
  bool Satisfied(const HistoryEntry& row) const REQUIRES(mu_);

  const WeightSlots& slots_;
  Clock& clock_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  std::uint64_t mark_ GUARDED_BY(mu_) = 1;
  mutable int waiting_ GUARDED_BY(mu_) = 0;
  bool closing_ GUARDED_BY(mu_) = false;
  ReceiverStatus status_ GUARDED_BY(mu_);
  std::deque<ReceiverStatus> recent_ GUARDED_BY(mu_);  // the newest is that of mark_
  std::string seen_run_ GUARDED_BY(mu_);               // of status_.newest_seen
  History history_ GUARDED_BY(mu_);
};

}  // namespace bascule
