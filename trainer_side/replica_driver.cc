#include "trainer_side/replica_driver.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include "base/log.h"
#include "trainer_side/gather/gathered_source.h"
#include "trainer_side/group_report.h"
#include "trainer_side/policy_run.h"

namespace bascule {

Result<std::unique_ptr<ReplicaDriver>> ReplicaDriver::Create(WeightPublisherOptions options,
                                                             const TensorSource& source) {
  const TrainerGroup group = options.group;
  std::unique_ptr<ReplicaDriver> driver(new ReplicaDriver(std::move(options), source));
  if (group.world_size > 1) {
    GroupLeader& leader = *driver->leader_;
    ASSIGN_OR_RETURN(driver->listener_,
                     group.host->Listen(group.leader, [&leader](ControlChannel& channel) { leader.Serve(channel); }));
  }
  return driver;
}

ReplicaDriver::ReplicaDriver(WeightPublisherOptions options, const TensorSource& source)
    : options_(std::move(options)), source_(source) {
  if (options_.max_bytes_per_second > 0) pacer_.emplace(options_.max_bytes_per_second, *options_.clock);
  if (options_.group.world_size > 1) {
    leader_ = std::make_unique<GroupLeader>(options_.group.name, options_.group.world_size, source_.layout(),
                                            *options_.clock);
  }
  gathering_.emplace(GatheringOptions{.team = leader_.get(),
                                      .listeners = options_.group.listeners,
                                      .credits = options_.credits,
                                      .clock = options_.clock},
                     plans_);
}

void ReplicaDriver::TakeReplicas(const std::vector<std::string>& addresses) {
  const bool gathers = options_.gather && (leader_ != nullptr || !HoldsFullTensors(source_.layout()));
  std::move(replicas_.begin(), replicas_.end(), std::back_inserter(idle_));
  replicas_.clear();
  for (const std::string& address : addresses) {
    const auto known = std::ranges::find(idle_, address, &Replica::address);
    if (known == idle_.end()) {
      replicas_.push_back({.connection = MakeConnection(address, gathers), .gathers = gathers});
    } else {
      replicas_.push_back(std::move(*known));
      idle_.erase(known);
    }
    // A plan is agreed on when a connection begins.
    Replica& replica = replicas_.back();
    if (replica.connection->options().plan != PlanOptionsOf(replica.gathers)) {
      replica.connection = MakeConnection(address, replica.gathers);
    }
    replica.Begin();
  }
  std::erase_if(idle_, [](const Replica& replica) {
    return !replica.connection->is_open() || !replica.connection->inbox().Quiet();
  });
}

// Whoever sends full tensors needs no team for it: how these come together is its own affair.
std::unique_ptr<ReplicaConnection> ReplicaDriver::MakeConnection(const std::string& address, bool gathers) {
  return std::make_unique<ReplicaConnection>(
      ConnectionOptions{.address = address,
                        .control = options_.control,
                        .transports = gathers ? DialersFor(nullptr, options_.transports) : options_.transports,
                        .fallbacks = options_.fallbacks,
                        .publisher = publisher_,
                        .model = options_.model,
                        .plan = PlanOptionsOf(gathers),
                        .credits = options_.credits,
                        .pacer = pacer_ ? &*pacer_ : nullptr,
                        .team = gathers ? nullptr : leader_.get(),
                        .connect_timeout = options_.connect_timeout,
                        .clock = options_.clock},
      plans_);
}

// A window of full tensors is as large as what a route has in flight, so that neither outweighs the other.
PlanOptions ReplicaDriver::PlanOptionsOf(bool gathers) const {
  return {.bucket_bytes = options_.bucket_bytes,
          .ignore = options_.ignore,
          .window_bytes = gathers ? options_.credits * options_.bucket_bytes : 0,
          .scope = scope_,
          .twins = !gathers && std::ranges::any_of(options_.transports, &TransportDialer::CanCast)};
}

// Members that are still there hear what was said last.
ReplicaDriver::~ReplicaDriver() {
  if (leader_ != nullptr) leader_->Disband();
}

PublishReport ReplicaDriver::Run(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                                 const Cancellation& cancel) {
  // Who lacks what the fleet has may lack its base as well.
  scope_ = job.again ? std::vector<std::string>() : job.request.scope;
  TakeReplicas(job.replicas);
  gather_window_bytes_ = 0;
  if (job.again) return SendAgain(job, pending, deadline, cancel);
  BeginRound(job.request, deadline, cancel);
  for (Replica& replica : replicas_) {
    if (refused_.contains(replica.address())) replica.connection->Close();  // to hear what it keeps
  }
  OpenReplicas(deadline, cancel);
  SettleRefused(deadline, cancel);
  RefuseOtherTensors();
  OpenGathering(deadline, cancel.token());
  SettleDecision();
  VersionOffer offer;
  if (Result<VersionOffer> chosen = ChooseVersion(job); chosen.ok()) {
    offer = std::move(*chosen);
  } else {
    FailAll(chosen.status());
  }
  if (const Status fit = CheckStanding(); !fit.ok()) FailAll(fit);
  packed_whole_ = HasAllTensors();
  if (TakesCopy(options_.snapshot)) {
    if (const Status taken = TakeSnapshot(deadline); !taken.ok()) FailAll(taken);
    pending.SetPacked();
  }
  SendToReplicas(offer, offer.run == KnownRun(job.newest), std::nullopt, pending, deadline, cancel);
  NoteDecision();
  PublishReport report = Report(offer, pending);
  report.scope = scope_;
  report.base = offer.base;
  NotePacked(report.version);
  if (leader_ != nullptr) leader_->Conclude(OutcomeOf(report));
  return report;
}

void ReplicaDriver::BeginRound(const PublishRequest& request, Deadline deadline, const Cancellation& cancel) {
  if (leader_ == nullptr) return;
  Result<GroupLeader::Assembly> assembly = leader_->BeginRound(request.number, deadline, cancel.token());
  if (!assembly.ok()) return FailRound(StopSignal(cancel).Explain(assembly.status()));
  group_layout_ = std::move(assembly->layout);
  if (!assembly->changed) return;
  // The routes of members that are new to it cannot be those that it has.
  for (Replica& replica : replicas_) replica.connection->Close();
  gathering_->Close();
}

void ReplicaDriver::FailRound(const Status& why) {
  for (Replica& replica : replicas_) {
    replica.connection->Enter(SendPhase::kGroup);
    replica.sent.phase = SendPhase::kGroup;
  }
  FailAll(why);
}

void ReplicaDriver::OpenReplicas(Deadline deadline, const Cancellation& cancel) {
  ForEach(Standing(), [&](Replica& replica) {
    const Status opened = OpenReplica(replica, deadline, cancel.token());
    replica.Fail(StopSignal(cancel).Explain(opened));
  });
}

Status ReplicaDriver::OpenReplica(Replica& replica, Deadline deadline, const std::stop_token& stop) {
  const Status opened = replica.connection->Open(replica.gathers ? FullLayout() : layout(), deadline, stop);
  if (replica.gathers || opened.reason() != "full_tensors_only") return opened;
  replica.gathers = true;
  replica.connection = MakeConnection(replica.connection->options().address, /*gathers=*/true);
  return replica.connection->Open(FullLayout(), deadline, stop);
}

void ReplicaDriver::RefuseOtherTensors() {
  const std::vector<Replica*> standing = Standing();
  for (Replica* replica : standing) {
    const ReplicaConnection& first = *standing.front()->connection;
    if (replica->connection->plan().tensors == first.plan().tensors) continue;
    replica->Fail(Status::FailedPrecondition(
        "replicas_differ", fmt::format("takes other tensors or types than replica {}", first.options().address)));
  }
}

// A decision counts once any replica has carried it out: before that nobody serves the version, and nobody lacks it.
void ReplicaDriver::SettleDecision() {
  if (options_.journal != nullptr) {
    const std::optional<CommitDecision> last = options_.journal->last();
    bool carried_out = last && !last->live.empty();
    for (const Replica* replica : Standing()) {
      if (!last || replica->connection->live() != last->version) continue;
      carried_out = true;
      if (const Status noted = options_.journal->NoteLive(replica->address()); !noted.ok()) {
        LogWarn("journal_failed", "replica={} why=\"{}\"", replica->address(), noted.ToString());
      }
    }
    if (carried_out && !last->taken_back) committed_ = last->version;
  }
  for (Replica* replica : Standing()) {
    if (!committed_ || replica->connection->live() == *committed_) continue;
    // One that cannot be told is found lost by its session.
    static_cast<void>(replica->connection->inbox().Send(Require{*committed_}));
  }
}

void ReplicaDriver::OpenGathering(Deadline deadline, const std::stop_token& stop) {
  std::vector<Replica*> gathering = Standing();
  std::erase_if(gathering, [](const Replica* replica) { return !replica->gathers; });
  if (gathering.empty()) return;
  const Status opened = gathering_->Open(layout(), SentTensors(gathering.front()->connection->plan()),
                                         PlanOptionsOf(/*gathers=*/true), deadline, stop);
  if (opened.ok()) return;
  for (Replica* replica : gathering) replica->Fail(opened);
}

Result<VersionOffer> ReplicaDriver::ChooseVersion(const PublishJob& job) {
  const PublishRequest& request = job.request;
  const WeightVersion& newest = job.newest;
  VersionOffer offer{.run = options_.run.empty() ? KnownRun(newest) : options_.run,
                     .number = 0,
                     .new_run = options_.new_run,
                     .labels = request.labels,
                     .families = options_.families,
                     .term = term_,
                     .take_over = request.take_over};
  if (request.take_over) offer.term = ++term_;
  for (const Replica* replica : Standing()) {
    if (offer.run.empty()) offer.run = replica->connection->live().run;
  }
  if (offer.run.empty() && !Standing().empty()) {
    return Status::FailedPrecondition("no_run", "no replica has a live version whose run could go on: name a run");
  }
  std::uint64_t seen = newest.run == offer.run ? newest.number : 0;
  if (job.committed && job.committed->run == offer.run) seen = std::max(seen, job.highest);
  if (options_.journal != nullptr) {
    const std::optional<CommitDecision> last = options_.journal->last();
    if (last && last->version.run == offer.run) seen = std::max(seen, last->version.number);
  }
  for (const Replica* replica : Standing()) {
    const ReplicaConnection& connection = *replica->connection;
    // One that has lost its weights does not say the run that its numbers are of.
    const std::string& run = connection.live().run;
    if (run.empty() || run == offer.run) seen = std::max(seen, connection.highest_number());
  }
  offer.number = request.number.value_or(seen + 1);
  if (scope_.empty() || Standing().empty()) return offer;
  offer.base = request.base;
  if (!offer.base) {
    ASSIGN_OR_RETURN(offer.base, ChooseBase(job, offer));
  }
  return offer;
}

Result<WeightVersion> ReplicaDriver::ChooseBase(const PublishJob& job, const VersionOffer& offer) {
  // A version that is being finished is no base of itself, where it is live already.
  const auto is_itself = [&](const WeightVersion& version) {
    return version.run == offer.run && version.number == offer.number;
  };
  if (job.committed && !is_itself(*job.committed)) return *job.committed;
  WeightVersion base;
  for (const Replica* replica : Standing()) {
    const WeightVersion& live = replica->connection->live();
    const bool is_newer = live.run == base.run && live.number > base.number;
    if (!live.run.empty() && (base.run.empty() || is_itself(base) || (is_newer && !is_itself(live)))) base = live;
  }
  if (!base.run.empty()) return base;
  return Status::FailedPrecondition("wrong_base", "no replica has a live version that a partial one could build on");
}

bool ReplicaDriver::HasAllTensors() {
  std::set<std::string_view> held;
  for (const TensorSpec& tensor : layout().tensors) held.insert(tensor.name);
  const std::vector<Replica*> standing = Standing();
  const auto has = [&](const TensorSpec& tensor) { return held.contains(tensor.name); };
  return scope_.empty() ||
         (!standing.empty() && std::ranges::all_of(standing.front()->connection->plan().tensors, has));
}

std::string ReplicaDriver::KnownRun(const WeightVersion& newest) const {
  return newest.run.empty() && committed_ ? committed_->run : newest.run;
}

Status ReplicaDriver::CheckStanding() {
  const std::size_t standing = Standing().size();
  if (standing > 0 && std::cmp_less(standing, options_.min_replicas)) {
    return Status::Unavailable("too_few_replicas", fmt::format("{} of {} can be reached, {} have to be", standing,
                                                               replicas_.size(), options_.min_replicas));
  }
  return standing > 0 && options_.guard ? CheckWeights(source_, *options_.guard) : OkStatus();
}

// Where no replica says in which types it is to be, it keeps those that it had: it never has an older version's bytes.
Status ReplicaDriver::TakeSnapshot(Deadline deadline) {
  if (const std::vector<Replica*> standing = Standing(); !standing.empty()) {
    const Plan& plan = standing.front()->connection->plan();
    // Whoever comes late gets all of it.
    const std::vector<TensorSpec> wire = options_.catch_up ? plan.tensors : SentTensors(plan);
    if (snapshot_ == nullptr || snapshot_->wire() != wire) {
      snapshot_.reset();  // both at once might not fit
      ASSIGN_OR_RETURN(
          snapshot_,
          WeightSnapshot::Create(source_, wire, MemoryForSnapshot(source_, options_.snapshot == Snapshot::kDevice)));
    }
  }
  return snapshot_ == nullptr ? OkStatus() : snapshot_->Copy(deadline);
}

void ReplicaDriver::SendToReplicas(const VersionOffer& offer, bool known_run, const std::optional<WeightVersion>& again,
                                   PendingPublish& pending, Deadline deadline, const Cancellation& cancel) {
  const std::vector<Replica*> standing = Standing();
  pending.ExpectSealed(static_cast<int>(standing.size()));
  if (standing.empty()) return;
  const WeightSource* source = &source_;
  if (TakesCopy(options_.snapshot)) source = snapshot_.get();
  std::optional<RankSource> as_rank;
  if (leader_ != nullptr) {
    as_rank.emplace(*source, options_.group.rank, options_.group.world_size);
    source = &*as_rank;
  }
  std::deque<GatheredSource> gathered;
  if (std::ranges::any_of(standing, &Replica::gathers)) {
    TensorGatherer& gatherer = gathering_->Begin(*source, deadline);
    for (Replica* replica : standing) {
      if (replica->gathers) replica->gathered = &gathered.emplace_back(gatherer, FullLayout());
    }
  }
  std::atomic<std::size_t> unsealed = standing.size();
  const auto on_sealed = [&] {
    pending.CountSealed();
    if (--unsealed == 0 && leader_ != nullptr) leader_->NotePacked();
  };
  PolicyRun run(replicas_,
                {.source = *source,
                 .offer = offer,
                 .deadline = deadline,
                 .cancel = cancel,
                 .on_sealed = on_sealed,
                 .reopen = [&](Replica& replica) { return OpenReplica(replica, deadline, cancel.token()); },
                 .journal = options_.journal,
                 .gate = options_.gate,
                 .on_refused_live = [this](const std::string& address,
                                           const RefusedVersion& refused) { refused_[address] = refused; },
                 .clock = *options_.clock},
                known_run);
  again ? run.Finish(*again, /*has_its_bytes=*/true) : run.Run(options_.policy);
  if (!gathered.empty()) gather_window_bytes_ = gathering_->Finish();
}

// Under kEach a replica that lags is stale, which it shows; under the others the fleet is one. A canary that has not
// gone back from a refused version has committed it, and the fleet has not.
void ReplicaDriver::NoteDecision() {
  if (options_.policy == PublishPolicy::kEach) return;
  for (const Replica& replica : replicas_) {
    if (!replica.Failed() && replica.state == ReplicaState::kCommitted) committed_ = replica.sent.version;
  }
}

PublishReport ReplicaDriver::Report(const VersionOffer& offer, const PendingPublish& pending) const {
  PublishReport report;
  report.version = {.run = offer.run, .number = offer.number, .digest = {}};
  report.gather_window_bytes = gather_window_bytes_;
  report.packed_ms = pending.packed_ms();
  for (const Replica& replica : replicas_) {
    const SendReport& sent = replica.sent;
    if (!sent.version.digest.IsZero()) report.version.digest = sent.version.digest;
    report.bytes = std::max(report.bytes, sent.bytes);
    report.wire_bytes += sent.wire_bytes;
    report.replicas.push_back({.address = replica.address(),
                               .status = sent.status,
                               .phase = sent.status.ok() ? "" : std::string(SendPhaseName(sent.phase)),
                               .state = replica.state,
                               .transport = sent.transport,
                               .stage_ms = sent.stage_ms,
                               .verify_ms = sent.verify_ms,
                               .flip = sent.flip});
  }
  return report;
}

void ReplicaDriver::FailAll(const Status& why) {
  for (Replica* replica : Standing()) replica->Fail(why);
}

std::vector<Replica*> ReplicaDriver::Standing() {
  std::vector<Replica*> standing;
  for (Replica& replica : replicas_) {
    if (!replica.Failed()) standing.push_back(&replica);
  }
  return standing;
}

}  // namespace bascule
