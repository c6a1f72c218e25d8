// Whose turn it is: at most one session of a replica receives (I7), and its number is new in its run (I3).
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/session/messages.h"
#include "engine_side/version_ledger.h"
#include "engine_side/weight_slots.h"

namespace bascule {

class ReceiveSession;

class SessionRegistry {
 public:
  SessionRegistry(const WeightSlots& slots, Clock& clock) : slots_(slots), clock_(clock) {}

  // See VersionLedger::Check and CheckDigest.
  //
  // FailedPrecondition "already_live"  of an offer that is to be the first
  Status CheckNumber(const Offer& offer) const EXCLUDES(mu_);
  Status CheckDigest(const ManifestOffer& offer, const Hash256& digest) const EXCLUDES(mu_);

  // Makes `session` the open one. An older session of the same publisher is fenced; so is another publisher's when the
  // offer takes over, and then that publisher's offers of the same term are refused from now on.
  //
  // Unavailable        "publisher_busy"    another publisher's session is open: who, which version, for how long
  // Aborted            "fenced"            the offer's term is not newer than one that was taken over
  // FailedPrecondition "flip_in_progress"  the open session flips at this moment
  // FailedPrecondition as CheckNumber
  Status Open(const std::shared_ptr<ReceiveSession>& session) EXCLUDES(mu_);
  // Nothing happens unless `session` is the open one.
  void Close(const ReceiveSession& session) EXCLUDES(mu_);

  void Committed(const ManifestOffer& offer, const Hash256& digest, bool was_live) EXCLUDES(mu_);
  std::uint64_t HighestNumber(const std::string& run) const EXCLUDES(mu_);

 private:
  // Until the open session, where it has ended, is closed.
  Status AwaitClosed(Deadline deadline) REQUIRES(mu_);
  Status CheckTurn(const ReceiveSession& session) const REQUIRES(mu_);
  Status CheckNumberLocked(const Offer& offer) const REQUIRES(mu_);
  void Fence(InstanceId publisher, std::uint64_t term) EXCLUDES(mu_);

  const WeightSlots& slots_;
  Clock& clock_;
  mutable Mutex mu_;  // Taken before a session's own; not held while a session ends.
  CondVar closed_;
  std::shared_ptr<ReceiveSession> open_ GUARDED_BY(mu_);  // shared with its connection
  TimePoint opened_at_ GUARDED_BY(mu_);
  std::map<InstanceId, std::uint64_t> fenced_terms_ GUARDED_BY(mu_);
  VersionLedger ledger_ GUARDED_BY(mu_);
};

}  // namespace bascule
