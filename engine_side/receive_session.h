// Stage: staging (transport -> [staging] -> verify -> flip)
//
// One attempt to receive one version: drives the pure state machine of bridge/session through reserve, stage, verify
// and flip. Whatever ends it before the flip leaves the live version and gives the shadow slot back (I6), whoever ends
// it: its connection, a route, its deadline, or a newer session.
//
// Thread-safety: thread-safe. Buckets come on the threads of their routes, messages on the connection's; the session
// prepares its slot on a thread of its own, so that both stay free to hear of an abort; what a partial version leaves
// out is copied there too, beside the buckets that come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/session/messages.h"
#include "bridge/session/session_state.h"
#include "bridge/transport/transport.h"
#include "engine_side/lent_memory.h"
#include "engine_side/receiver_parts.h"
#include "engine_side/staging.h"
#include "engine_side/verifier.h"

namespace bascule {

struct SessionTerms {
  InstanceId publisher;
  Offer offer;
  std::shared_ptr<const ReceivePlan> plan;  // shared with the plan cache
  Deadline deadline;
};

class ReceiveSession {
 public:
  // `send` is called until the session is over, also from other threads.
  ReceiveSession(SessionTerms terms, ReceiverParts& parts, std::function<void(const SessionMessage&)> send);
  ~ReceiveSession();  // over

  const SessionTerms& terms() const { return terms_; }
  bool over() const EXCLUDES(mu_);
  // Its end is decided; it may still be giving things back.
  bool ended() const EXCLUDES(mu_);
  // Once its end is decided: waits until everything is given back. False at the deadline.
  bool AwaitOver(Deadline deadline) EXCLUDES(mu_);
  // Once it is over, by whoever began it and before that lets go of it: waits until the session's own thread, which may
  // be the one that takes it out of the registry, has done with it. That thread cannot wait for itself.
  void AwaitThread() { preparer_.Join(); }

  // The registry has opened the session: reserves a shadow slot, then sends Accept. Where something is lent no bucket
  // comes, but OnLent, and a slot in host memory shows what is lent.
  void Begin(std::optional<LentMemory> lent = std::nullopt) EXCLUDES(mu_);
  // In place of all buckets, once accepted: what is lent is here, and is digested where it lies; for a slot on a device
  // it is copied there, digested there, and let go.
  void OnLent() EXCLUDES(mu_);
  // Places and verifies a bucket, and says what became of it.
  BucketAck OnBucket(int route, const ReceivedFrame& frame) EXCLUDES(mu_);
  // Answers with Missing, Ready or Abort.
  void OnSeal(const Seal& seal) EXCLUDES(mu_);
  // Answers with Committed or Abort.
  void OnFlip(const Flip& flip) EXCLUDES(mu_);

  // Ends the session because of `event` and tells the peer, unless it is over. When this returns nothing of the session
  // touches the shadow slot any more. False while the session flips: then the flip decides.
  bool End(SessionEvent event, Status why) EXCLUDES(mu_);

 private:
  void Prepare(std::stop_token stop) EXCLUDES(mu_);
  Status ReserveAndFill(std::stop_token stop) EXCLUDES(mu_);
  Status CarryOverBase(const std::stop_token& stop) EXCLUDES(mu_);
  Accept Acceptance() const;
  // A slot on a device gets a copy of what is lent; one in host memory is that memory.
  bool CopiesLent() const { return lent_ && !parts_.slots.work().OnHost(); }
  Status NoteLent() EXCLUDES(mu_);

  BucketAck OnUnreadableFrame(const Status& why) EXCLUDES(mu_);
  Status CheckBucket(int route, const BucketHeader& header, const ReceivedFrame& frame) const;
  // Nothing when the bucket may be placed now: the caller's work then ends in Conclude.
  std::optional<BucketVerdict> StartBucket(const BucketHeader& header) EXCLUDES(mu_);
  Status PlaceAndDigest(const BucketHeader& header, const ReceivedFrame& frame) EXCLUDES(mu_);
  BucketVerdict Conclude(const BucketHeader& header, const Status& damage) EXCLUDES(mu_);
  void CountGood(const Bucket& bucket, std::uint32_t number) REQUIRES(mu_);

  bool Staged() const REQUIRES(mu_) { return coverage_.complete() && carried_; }
  Status Sealed(const ManifestSeal& seal) REQUIRES(mu_);
  void Verify(const ManifestSeal& seal) EXCLUDES(mu_);
  Status Prove(const ManifestSeal& seal) EXCLUDES(mu_);
  Result<HeldDigests> ProveReceived(const ManifestSeal& seal) const;
  void Record(const FlipReport& report, HistoryEntry::Kind kind) EXCLUDES(mu_);

  // False, and nothing happens, when the state does not allow the event.
  bool Step(SessionEvent event) REQUIRES(mu_);
  void WorkDone() REQUIRES(mu_);
  void SetOver() EXCLUDES(mu_);
  HistoryEntry Row() const REQUIRES(mu_);
  std::string Progress() const REQUIRES(mu_);

  const SessionTerms terms_;
  ReceiverParts& parts_;
  const std::function<void(const SessionMessage&)> send_;

  mutable Mutex mu_;  // Guards what follows; never held across a copy, a digest, a flip or a send.
  CondVar changed_;
  SessionState state_ GUARDED_BY(mu_) = SessionState::kIdle;
  bool flipping_ GUARDED_BY(mu_) = false;
  bool over_ GUARDED_BY(mu_) = false;  // ended, and everything given back
  int working_ GUARDED_BY(mu_) = 0;    // threads that use the shadow slot now
  std::optional<int> slot_ GUARDED_BY(mu_);
  WeightVersion version_ GUARDED_BY(mu_);  // digest once sealed
  CoverageLedger coverage_ GUARDED_BY(mu_);
  int unreadable_frames_ GUARDED_BY(mu_) = 0;
  bool accepted_ GUARDED_BY(mu_) = false;
  bool carried_ GUARDED_BY(mu_) = false;                    // what the scope leaves out is there, or there is no scope
  std::optional<ManifestSeal> early_seal_ GUARDED_BY(mu_);  // that waits for that
  bool missing_sent_ GUARDED_BY(mu_) = false;
  std::int64_t received_bytes_ GUARDED_BY(mu_) = 0;
  TimePoint accepted_at_ GUARDED_BY(mu_);
  TimePoint staged_at_ GUARDED_BY(mu_);  // as far as it is
  double verify_ms_ GUARDED_BY(mu_) = 0;
  HeldDigests held_ GUARDED_BY(mu_);  // once proven

  // Set before Accept is sent, so before any bucket comes.
  std::optional<LentMemory> lent_;  // without its memory, once the slot has it or a copy of it
  std::optional<Staging> staging_;
  std::optional<Verifier> verifier_;
  WeightLease base_;  // the preparer's, until it has been carried over; empty without one
  Worker preparer_;
};

}  // namespace bascule
