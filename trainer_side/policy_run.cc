#include "trainer_side/policy_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/worker.h"
#include "bridge/send/decided_version.h"
#include "bridge/send/replica_rollback.h"
#include "trainer_side/commit_barrier.h"

namespace bascule {
namespace {

// A refused canary goes back also when the publish has no time left.
constexpr Duration kRollbackTime = std::chrono::seconds(30);

}  // namespace

void ForEach(const std::vector<Replica*>& replicas, const std::function<void(Replica&)>& act) {
  std::vector<Worker> workers;
  for (Replica* replica : replicas) {
    workers.emplace_back("publish-replica", [&act, replica](std::stop_token) { act(*replica); });
  }
  for (Worker& worker : workers) worker.Join();
}

PolicyRun::PolicyRun(std::vector<Replica>& replicas, PolicyTerms terms, bool known_run)
    : replicas_(replicas), terms_(std::move(terms)), known_run_(known_run) {}

void PolicyRun::Run(PublishPolicy policy) {
  switch (policy) {
    case PublishPolicy::kEach:
      return Each();
    case PublishPolicy::kAll:
      return All();
    case PublishPolicy::kCanary:
      return Canary();
  }
}

void PolicyRun::Each() {
  ForEach(Standing(), [&](Replica& replica) { Send(replica, terms_.cancel); });
}

void PolicyRun::All() {
  if (const auto decided = ToFinish()) return Finish(decided->version, /*has_its_bytes=*/false);
  if (const Replica* failed = FirstFailed()) {
    const Status& why = failed->sent.status;
    return GiveUp(Standing(), Status::Aborted("replica_not_ready", fmt::format("{}: {}: {}", failed->address(),
                                                                               why.reason(), why.message())));
  }
  Cancellation stop;
  const std::stop_callback link(terms_.cancel.token(), [&] { stop.Request(terms_.cancel.why()); });
  std::vector<std::string> addresses;
  for (const Replica& replica : replicas_) addresses.push_back(replica.address());
  CommitBarrier barrier(addresses,
                        {.write_down = [&](const WeightVersion& version) { return WriteDown(version); },
                         .abort = [&](const Status& why) { stop.Request(why); }},
                        terms_.clock);
  ForEach(Standing(), [&](Replica& replica) {
    const auto index = static_cast<std::size_t>(&replica - replicas_.data());
    Send(replica, stop, &barrier.vote(index));
    if (replica.Failed()) barrier.Fail(index, replica.sent.status);
  });
  const bool committed = barrier.decision().value_or(Status()).ok();
  for (Replica& replica : replicas_) {
    if (!replica.Failed()) {
      NoteLive(replica);
    } else if (committed) {
      replica.state = ReplicaState::kMissed;
    }
  }
}

std::optional<CommitDecision> PolicyRun::ToFinish() const {
  if (terms_.journal == nullptr) return std::nullopt;
  const std::optional<CommitDecision> last = terms_.journal->last();
  if (!last || last->finished()) return std::nullopt;
  if (last->version.run != terms_.offer.run || last->version.number != terms_.offer.number) return std::nullopt;
  const std::vector<Replica*> standing = Standing();
  const auto lacks = [&](const Replica* replica) { return replica->connection->live() != last->version; };
  return std::ranges::any_of(standing, lacks) ? last : std::nullopt;
}

void PolicyRun::Finish(const WeightVersion& decided, bool has_its_bytes) {
  std::vector<Replica*> have;
  std::vector<Replica*> lack;
  for (Replica* replica : Standing()) (replica->connection->live() == decided ? have : lack).push_back(replica);
  for (std::size_t i = 0; i < have.size(); ++i) terms_.on_sealed();
  ForEach(lack, [&](Replica& replica) {
    DecidedVersion vote(decided,
                        [&](const WeightVersion& version) { return WriteDownLate(version, replica.address()); });
    Send(replica, terms_.cancel, &vote);
  });
  for (Replica& replica : replicas_) {
    if (replica.Failed()) replica.state = ReplicaState::kMissed;
  }
  const bool proven = has_its_bytes || std::ranges::any_of(lack, [](const Replica* r) { return !r->Failed(); });
  for (Replica* replica : have) {
    if (!proven) {
      const Status& why = lack.front()->sent.status;
      replica->Fail(Status::Aborted(
          "replica_not_ready", fmt::format("{} is live there, but {}, which lacks it, has not taken it: {}: {}",
                                           decided.ToString(), lack.front()->address(), why.reason(), why.message())));
      continue;
    }
    replica->state = ReplicaState::kCommitted;
    replica->sent.version = replica->sent.flip.version = decided;
  }
  for (const Replica* replica : Standing()) NoteLive(*replica);
}

Status PolicyRun::WriteDown(const WeightVersion& version) const {
  if (terms_.journal == nullptr) return OkStatus();
  std::vector<std::string> addresses;
  for (const Replica& replica : replicas_) addresses.push_back(replica.address());
  return terms_.journal->Decide(version, addresses);
}

Status PolicyRun::WriteDownLate(const WeightVersion& version, const std::string& replica) {
  if (terms_.journal == nullptr) return OkStatus();
  MutexLock lock(late_);  // of several that take it at once one is the first
  const std::optional<CommitDecision> last = terms_.journal->last();
  if (last && last->version == version) return OkStatus();
  if (last && last->version.run == version.run && last->version.number >= version.number) {
    const bool same_number = last->version.number == version.number;
    return Status::FailedPrecondition("stale_version", fmt::format("{} has been decided{}", last->version.ToString(),
                                                                   same_number ? ", with other bytes" : " since"));
  }
  return terms_.journal->Decide(version, {replica});
}

// The decision stands whether or not this is known: a publisher that comes back asks the replica.
void PolicyRun::NoteLive(const Replica& replica) const {
  if (terms_.journal == nullptr) return;
  const std::optional<CommitDecision> last = terms_.journal->last();
  if (!last || last->version != replica.sent.version) return;
  if (const Status noted = terms_.journal->NoteLive(replica.address()); !noted.ok()) {
    LogInfo("journal_failed", "replica={} why=\"{}\"", replica.address(), noted.ToString());
  }
}

void PolicyRun::Canary() {
  std::vector<Replica*> rest = Standing();
  const auto found = std::find_if(rest.begin(), rest.end(),
                                  [](const Replica* replica) { return !replica->connection->live().run.empty(); });
  if (found == rest.end()) {
    // What a replica has is known from its greeting: one that loads its first version now says so in the next.
    for (Replica* replica : rest) replica->connection->Close();
    return GiveUp(rest, Status::FailedPrecondition("no_kept_version", "no replica has a version to go back to"));
  }
  Replica& canary = **found;
  rest.erase(found);
  const WeightVersion previous = canary.connection->live();
  Send(canary, terms_.cancel);
  if (canary.Failed()) {
    const Status& why = canary.sent.status;
    return GiveUp(rest, Status::Aborted("canary_failed", fmt::format("{}: {}", why.reason(), why.message())));
  }
  const Status verdict = terms_.gate({.address = canary.address(),
                                      .flip = canary.sent.flip,
                                      .previous = previous,
                                      .deadline = terms_.deadline,
                                      .stop = terms_.cancel.token()});
  LogInfo("canary_judged", "replica={} version={} verdict=\"{}\"", canary.address(), canary.sent.version.ToString(),
          verdict.ToString());
  if (verdict.ok()) return ForEach(rest, [&](Replica& replica) { Send(replica, terms_.cancel); });
  RollBackCanary(canary, verdict);
  GiveUp(rest, verdict.WithContext(fmt::format("canary {}", canary.address())));
}

// To what was live before, which is not always what was heard of last: others roll back and publish, too.
void PolicyRun::RollBackCanary(Replica& canary, const Status& verdict) {
  const Result<FlipReport> back =
      RollBackReplica(*canary.connection, {.from = canary.sent.version, .why = verdict, .refused = true},
                      std::max(terms_.deadline, Deadline::After(terms_.clock, kRollbackTime)));
  if (back.ok()) {
    canary.state = ReplicaState::kRolledBack;
    canary.sent.flip = *back;
    canary.Fail(verdict);
  } else {  // the refused version is live there, or the replica is gone
    terms_.on_refused_live(canary.address(), {.version = canary.sent.version, .why = verdict});
    canary.Fail(back.status().WithContext(fmt::format("not rolled back after {}", verdict.reason())));
  }
}

void PolicyRun::Send(Replica& replica, const StopSignal& stop, FlipDecider* decider) const {
  bool sealed = false;
  const auto on_sealed = [&] {
    sealed = true;
    terms_.on_sealed();
  };
  do {
    SendOnce(replica, stop, on_sealed, decider);
  } while (replica.Failed() && !sealed && OpensOtherWay(replica, stop));
  if (!sealed) terms_.on_sealed();
  if (!replica.Failed()) replica.state = ReplicaState::kCommitted;
}

void PolicyRun::SendOnce(Replica& replica, const StopSignal& stop, const std::function<void()>& on_sealed,
                         FlipDecider* decider) const {
  VersionOffer own = terms_.offer;
  own.new_run = (own.new_run || known_run_) && replica.connection->live().run != own.run;
  const WeightSource& source = replica.gathered == nullptr ? terms_.source : *replica.gathered;
  PublishSession session(*replica.connection, source, std::move(own), terms_.deadline, stop, on_sealed, decider);
  replica.sent = session.Run();
}

// Full tensors that were gathered are gone, and they come from the host's memory anyway.
bool PolicyRun::OpensOtherWay(Replica& replica, const StopSignal& stop) const {
  if (replica.gathered != nullptr || !replica.connection->HasOtherWay()) return false;
  if (stop.token().stop_requested() || terms_.deadline.Passed(terms_.clock)) return false;
  const TransportKind failed = replica.connection->transport();
  const Status opened = terms_.reopen(replica);
  LogWarn("publish_goes_another_way", "replica={} from={} to={} opened=\"{}\" why=\"{}\"", replica.address(),
          TransportName(failed), TransportName(replica.connection->transport()), opened.ToString(),
          replica.sent.status.ToString());
  return opened.ok();
}

void PolicyRun::GiveUp(const std::vector<Replica*>& replicas, const Status& why) const {
  for (Replica* replica : replicas) {
    replica->Fail(why);
    terms_.on_sealed();
  }
}

std::vector<Replica*> PolicyRun::Standing() const {
  std::vector<Replica*> standing;
  for (Replica& replica : replicas_) {
    if (!replica.Failed()) standing.push_back(&replica);
  }
  return standing;
}

const Replica* PolicyRun::FirstFailed() const {
  const auto failed = std::find_if(replicas_.begin(), replicas_.end(), [](const Replica& r) { return r.Failed(); });
  return failed == replicas_.end() ? nullptr : &*failed;
}

}  // namespace bascule
