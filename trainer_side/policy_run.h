// Brings one version to replicas whose connections are open, by a policy.
//
// Thread-safety: confined to the publish thread, but for what it hands its sessions.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "bridge/send/cancellation.h"
#include "bridge/send/publish_session.h"
#include "bridge/send/weight_source.h"
#include "trainer_side/commit_journal.h"
#include "trainer_side/publish_policy.h"
#include "trainer_side/replica.h"

namespace bascule {

// A version that a gate has refused.
struct RefusedVersion {
  WeightVersion version;
  Status why;
};

// What the sessions of one publish share. Borrowed.
struct PolicyTerms {
  const WeightSource& source;
  const VersionOffer& offer;
  Deadline deadline;
  const Cancellation& cancel;
  std::function<void()> on_sealed;  // once for each replica that has not failed before: nothing is read for it any more
  std::function<Status(Replica&)> reopen;  // its connection, which was closed
  CommitJournal* journal = nullptr;        // of kAll; null: decisions are not written down
  CanaryGate gate;                         // of kCanary
  // A refused canary could not be told to go back.
  std::function<void(const std::string& address, const RefusedVersion&)> on_refused_live;
  Clock& clock;
};

class PolicyRun {
 public:
  // Those of `replicas` that have failed take no part, but count for kAll. A run that the publisher's own versions are
  // in (`known_run`) goes on in a replica that has another one live: it was restarted.
  PolicyRun(std::vector<Replica>& replicas, PolicyTerms terms, bool known_run);

  void Run(PublishPolicy policy);
  // A version that is decided already: sends it to those that lack it, who refuse other bytes. Those that have it count
  // as committed if the source is known to have its bytes (`has_its_bytes`), or once somebody has taken them.
  void Finish(const WeightVersion& decided, bool has_its_bytes);

 private:
  void Each();
  void All();
  void Canary();

  // A decision that was made before, under the same number, and that somebody who stands has not carried out.
  std::optional<CommitDecision> ToFinish() const;
  // A version that was published while nobody was there is decided with the first that takes it.
  Status WriteDownLate(const WeightVersion& version, const std::string& replica) EXCLUDES(late_);
  Status WriteDown(const WeightVersion& version) const;
  void NoteLive(const Replica& replica) const;
  void RollBackCanary(Replica& canary, const Status& verdict);

  // Over another transport once more, where the one that was chosen has failed.
  void Send(Replica& replica, const StopSignal& stop, FlipDecider* decider = nullptr) const;
  void SendOnce(Replica& replica, const StopSignal& stop, const std::function<void()>& on_sealed,
                FlipDecider* decider) const;
  bool OpensOtherWay(Replica& replica, const StopSignal& stop) const;
  // None of these will be sent anything.
  void GiveUp(const std::vector<Replica*>& replicas, const Status& why) const;
  std::vector<Replica*> Standing() const;
  const Replica* FirstFailed() const;

  std::vector<Replica>& replicas_;
  const PolicyTerms terms_;
  const bool known_run_;
  Mutex late_;  // Guards what the journal says from its being read to its being written.
};

// Runs `act` for each, all at once.
void ForEach(const std::vector<Replica*>& replicas, const std::function<void(Replica&)>& act);

}  // namespace bascule
