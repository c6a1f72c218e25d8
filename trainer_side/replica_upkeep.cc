// What a ReplicaDriver does between publishes: a version comes again to those that lack it, or the fleet goes back.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "bridge/send/replica_rollback.h"
#include "trainer_side/group_report.h"
#include "trainer_side/policy_run.h"
#include "trainer_side/replica_driver.h"

namespace bascule {

bool ReplicaDriver::CanSendAgain(const WeightVersion& version) const {
  const bool same_number = version.run == packed_.run && version.number == packed_.number;
  // Without a digest nobody has had the version yet.
  if (!packed_whole_ || !same_number || (!version.digest.IsZero() && version.digest != packed_.digest)) return false;
  if (leader_ != nullptr && !leader_->CanSendAgain()) return false;
  return options_.snapshot == Snapshot::kTensorsStay || (TakesCopy(options_.snapshot) && snapshot_ != nullptr);
}

// A number that is published once more has other bytes, unless the tensors never change.
void ReplicaDriver::NotePacked(const WeightVersion& version) {
  const bool same_number = version.run == packed_.run && version.number == packed_.number;
  const bool same_bytes = same_number && options_.snapshot == Snapshot::kTensorsStay;
  if (!same_bytes || !version.digest.IsZero()) packed_ = version;
}

PublishReport ReplicaDriver::SendAgain(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                                       const Cancellation& cancel) {
  committed_ = *job.again;
  // It lacks the version, says the roster: what it had when it was greeted is old.
  for (Replica& replica : replicas_) {
    if (replica.connection->is_open() && replica.connection->live() == *job.again) replica.connection->Close();
  }
  BeginAgain(deadline, cancel);
  OpenReplicas(deadline, cancel);
  RefuseOtherTensors();
  OpenGathering(deadline, cancel.token());
  SettleDecision();
  VersionOffer offer;
  offer.run = job.again->run;
  offer.number = job.again->number;
  offer.families = options_.families;
  offer.term = term_;
  SendToReplicas(offer, /*known_run=*/true, job.again, pending, deadline, cancel);
  PublishReport report = Report(offer, pending);
  // The first that takes a version tells which bytes it is.
  const bool taken =
      std::ranges::any_of(report.replicas, [](const ReplicaReport& replica) { return replica.status.ok(); });
  if (packed_.digest.IsZero() && taken) packed_.digest = report.version.digest;
  // Outside the scope of a partial version the trainer may hold other bytes than its base has.
  // So may a rank of its group hold less than that; what it has not kept it never sends. Nor does anybody take what the
  // journal says was decided with other bytes.
  const Hash256& sent = report.version.digest;
  const auto never = [](const ReplicaReport& replica) {
    const std::string_view reason = replica.status.reason();
    return reason == "source_gone" || (reason == "stale_version" && replica.phase == "decide");
  };
  if (std::ranges::any_of(report.replicas, never)) packed_whole_ = false;
  if (!sent.IsZero() && !job.again->digest.IsZero() && sent != job.again->digest) packed_whole_ = false;
  if (leader_ != nullptr) leader_->Conclude(OutcomeOf(report));
  return report;
}

void ReplicaDriver::BeginAgain(Deadline deadline, const Cancellation& cancel) {
  if (leader_ == nullptr) return;
  const Status begun = leader_->BeginAgain(deadline, cancel.token());
  if (!begun.ok()) FailRound(StopSignal(cancel).Explain(begun));
}

// One that has gone on by itself, or has nothing to go back to, keeps what it has.
void ReplicaDriver::SettleRefused(Deadline deadline, const Cancellation& cancel) {
  for (Replica* replica : Standing()) {
    const auto refused = refused_.find(replica->address());
    if (refused == refused_.end()) continue;
    ReplicaConnection& connection = *replica->connection;
    const auto& [version, why] = refused->second;
    if (connection.live() == version && !connection.kept().run.empty()) {
      const Result<FlipReport> back =
          RollBackReplica(connection, {.from = version, .why = why, .refused = true}, deadline, cancel);
      if (!back.ok()) {
        replica->Fail(back.status().WithContext(fmt::format("not rolled back after {}", why.reason())));
        continue;
      }
    }
    refused_.erase(refused);
  }
}

Result<FleetRollback> ReplicaDriver::RollBack(const std::vector<std::string>& replicas, std::optional<std::uint64_t> to,
                                              Deadline deadline, const Cancellation& cancel) {
  TakeReplicas(replicas);
  // What a replica keeps is told when a connection begins. The ranks of a group are not there to begin one.
  for (Replica& replica : replicas_) {
    if (leader_ == nullptr) replica.connection->Close();
  }
  OpenReplicas(deadline, cancel);
  ASSIGN_OR_RETURN(const WeightVersion kept, KeptByAll(to));
  NoteTakenBack(kept);
  ForEach(Standing(), [&](Replica& replica) {
    const WeightVersion from = replica.connection->live();
    const Status why = Status::Aborted("fleet_rollback", "the whole fleet goes back");
    const auto known = refused_.find(replica.address());
    const bool refused = known != refused_.end() && known->second.version == from;
    const Result<FlipReport> back = RollBackReplica(
        *replica.connection, {.from = from, .to = kept.number, .why = why, .refused = refused}, deadline, cancel);
    replica.sent.status = back.status();
    replica.sent.phase = replica.connection->phase();
    if (!back.ok()) return;
    replica.state = ReplicaState::kRolledBack;
    replica.sent.flip = *back;
  });
  committed_ = kept;
  FleetRollback rollback{.version = kept, .replicas = {}};
  const PendingPublish none(*options_.clock);
  rollback.replicas = Report({.run = kept.run, .number = kept.number}, none).replicas;
  return rollback;
}

// Before the first replica goes back. What cannot be written down does not keep a fleet on a version that it leaves.
void ReplicaDriver::NoteTakenBack(const WeightVersion& to) {
  if (options_.journal == nullptr) return;
  const std::optional<CommitDecision> last = options_.journal->last();
  const Status noted = options_.journal->NoteTakenBack(last && last->version != to);
  if (!noted.ok()) LogWarn("journal_failed", "rollback={} why=\"{}\"", to.ToString(), noted.ToString());
}

Result<WeightVersion> ReplicaDriver::KeptByAll(std::optional<std::uint64_t> to) {
  const std::vector<Replica*> standing = Standing();
  if (standing.empty()) return Status::Unavailable("no_replica", "none can be reached");
  const WeightVersion& kept = standing.front()->connection->kept();
  for (const Replica* replica : standing) {
    const WeightVersion& own = replica->connection->kept();
    if (own.run.empty()) {
      return Status::FailedPrecondition("no_kept_version", replica->address() + " has no version to go back to");
    }
    if (own == kept) continue;
    return Status::FailedPrecondition(
        "kept_differs", fmt::format("{} keeps {}, {} keeps {}", standing.front()->address(), kept.ToString(),
                                    replica->address(), own.ToString()));
  }
  if (to && *to != kept.number) {
    return Status::NotFound("version_not_kept", fmt::format("wanted={} kept={}", *to, kept.number));
  }
  return kept;
}

}  // namespace bascule
