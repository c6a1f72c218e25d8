#include "tests/simulation/trainer_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "bridge/session/failure.h"

namespace bascule::simulation {
namespace {

constexpr FleetOptions kFleet{.heartbeat = std::chrono::milliseconds(500),
                              .first_retry = std::chrono::milliseconds(100),
                              .retry_cap = std::chrono::seconds(2)};
constexpr Duration kGrace = std::chrono::seconds(5);  // beyond a publish's deadline: what both sides wait for an answer

constexpr std::string_view kValuesLabel = "values";  // of a partial version's manifest: the number of what is sent

constexpr Duration kPatience = std::chrono::minutes(10);  // far beyond what a publish may take

constexpr Duration kRollbackTime = std::chrono::seconds(30);  // a refused canary goes back after the deadline too

// Values that no version has: whoever reads them does so too late.
const ShardedTrainer& Scribble(int ranks) {
  static std::map<int, std::unique_ptr<ShardedTrainer>> made;
  std::unique_ptr<ShardedTrainer>& scribble = made[ranks];
  if (scribble == nullptr) {
    scribble = std::make_unique<ShardedTrainer>(ranks, kRows);
    scribble->Fill(4'000'000'000U);
  }
  return *scribble;
}

// A gate has reasons of its own.
bool IsListed(const std::string& reason) {
  if (reason == kGateReason) return true;
  const auto failures = SessionFailures();
  return std::any_of(failures.begin(), failures.end(), [&](const FailureReason& f) { return f.reason == reason; });
}

}  // namespace

struct TrainerJob::Process {
  NodeId node = 0;
  std::unique_ptr<ControlHost> host;
  std::unique_ptr<ControlDialer> control;
  std::unique_ptr<TransportDialer> routes;
  std::unique_ptr<ProcessJournal> journal;
  std::unique_ptr<WeightPublisher> publisher;
  std::optional<WeightVersion> packed;  // of its last publish
};

TrainerJob::TrainerJob(Scheduler& scheduler, Network& network, VersionRecord& versions, FleetPromises& promises,
                       Watch watch, Surroundings surroundings, JobKind kind)
    : scheduler_(scheduler),
      network_(network),
      clock_(scheduler.clock()),
      versions_(versions),
      promises_(promises),
      watch_(std::move(watch)),
      surroundings_(std::move(surroundings)),
      kind_(std::move(kind)),
      tensors_(kind_.ranks, kRows),
      processes_(static_cast<std::size_t>(kind_.group ? kind_.ranks : 1)) {
  for (int process = 0; process < process_count(); ++process) Start(process);
}

TrainerJob::~TrainerJob() {
  for (int process = process_count() - 1; process >= 0; --process)
    processes_[static_cast<std::size_t>(process)].reset();
  undertakers_.clear();
}

void TrainerJob::Start(int process) {
  const NodeId caller = scheduler_.node();
  auto started = std::make_shared<Process>();
  started->node = surroundings_.new_node();
  scheduler_.Enter(started->node);
  started->host = network_.HostOf(started->node);
  started->control = network_.DialerOf(started->node);
  started->routes = network_.RouteDialerOf(started->node);
  WeightPublisherOptions options{.replicas = process == 0 ? kind_.replicas : std::vector<std::string>(),
                                 .control = started->control.get(),
                                 .transports = {started->routes.get()},
                                 .run = "run",
                                 .new_run = kind_.new_run,
                                 .policy = kind_.policy,
                                 .gate = surroundings_.gate,
                                 .catch_up = kind_.catch_up,
                                 .fleet = kFleet,
                                 .snapshot = kind_.snapshot,
                                 .bucket_bytes = 4096,
                                 .credits = 2,
                                 .connect_timeout = std::chrono::seconds(1),
                                 .deadline = kPublishTime,
                                 .clock = &clock_};
  if (kind_.policy == PublishPolicy::kAll && process == 0) {
    started->journal = std::make_unique<ProcessJournal>(surroundings_.journal, promises_, clock_);
    options.journal = started->journal.get();
  }
  if (kind_.group) {
    options.group = {.rank = process,
                     .world_size = kind_.ranks,
                     .leader = kind_.name,
                     .name = kind_.name,
                     .host = started->host.get()};
  }
  auto publisher =
      WeightPublisher::Create(std::move(options), kind_.group ? tensors_.SourceOf(process) : tensors_.Source());
  CHECK(publisher.ok());
  started->publisher = std::move(*publisher);
  processes_[static_cast<std::size_t>(process)] = std::move(started);
  scheduler_.Enter(caller);
}

void TrainerJob::Kill(int process) {
  std::shared_ptr<Process> killed = std::move(processes_[static_cast<std::size_t>(process)]);
  if (killed == nullptr) return;
  network_.Sever(killed->node);
  if (killed->journal != nullptr) killed->journal->Kill();
  undertakers_.emplace_back("undertaker", [this, killed = std::move(killed)](const std::stop_token&) mutable {
    killed->publisher->Cancel();
    while (killed.use_count() > 1) clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(1), {});
    killed.reset();
  });
}

void TrainerJob::Cancel(int process) {
  const std::shared_ptr<Process> cancelled = processes_[static_cast<std::size_t>(process)];
  if (cancelled != nullptr) cancelled->publisher->Cancel();
}

NodeId TrainerJob::node(int process) const {
  const auto& found = processes_[static_cast<std::size_t>(process)];
  return found == nullptr ? 0 : found->node;
}

std::optional<int> TrainerJob::ProcessOf(NodeId node) const {
  for (int process = 0; process < process_count(); ++process) {
    if (node != 0 && this->node(process) == node) return process;
  }
  return std::nullopt;
}

// What is sent is labelled, so that an offer says whose it is.
void TrainerJob::Declare(const Content& sent, const Partial& partial, PublishRequest& request) {
  request.scope = partial.scope->patterns;
  if (partial.names_base) request.base = noted_;
  request.labels[std::string(kValuesLabel)] = std::to_string(sent.number());
  partials_[sent.number()] = {.sent = &sent, .scope = partial.scope, .named = request.base};
}

void TrainerJob::Hold(const Content& sent, const std::optional<Partial>& partial) {
  const Content* rest = partial ? nullptr : &sent;
  if (partial && partial->has_the_rest && noted_) rest = versions_.Find(noted_->digest);
  for (std::size_t t = 0; t < sent.tensor_count(); ++t) {
    const bool is_sent = partial && std::ranges::find(partial->scope->tensors, t) != partial->scope->tensors.end();
    const Content* const content = is_sent ? &sent : rest;
    // What a trainer of other ranks, or a file, brought is none of what this one can hold.
    const bool holds = content != nullptr && content->Of(t).trainer_ranks() == kind_.ranks;
    tensors_.CopyTensorFrom(holds ? content->Of(t).held() : Scribble(kind_.ranks), t);
  }
}

// The base is the publisher's to choose unless the trainer names one, but it is the same for all replicas, and what
// comes of it is what was sent and the rest of that.
void TrainerJob::OnOffer(const ManifestOffer& offer) {
  const auto label = offer.labels.find(std::string(kValuesLabel));
  if (label == offer.labels.end()) {
    if (offer.base) watch_.violation("scope", fmt::format("{} offers a part of a whole version", kind_.name));
    return;
  }
  PartialPublish& partial = partials_.at(std::stoi(label->second));
  if (!offer.base || offer.scope != partial.scope->patterns || offer.base != partial.named.value_or(*offer.base) ||
      offer.base != partial.base.value_or(*offer.base)) {
    watch_.violation("scope", fmt::format("{} offers {}@{} with another scope or base than it declared or has offered",
                                          kind_.name, offer.run, offer.number));
    return;
  }
  const Content* const base = versions_.Find(offer.base->digest);
  if (base == nullptr) {
    watch_.violation("scope",
                     fmt::format("{} builds on {}, which nobody has published", kind_.name, offer.base->ToString()));
    return;
  }
  partial.base = offer.base;
  partial.content = &Composed(*partial.sent, *partial.scope, *base);
  versions_.Published(*partial.content);
}

TrainerJob::UnderWay TrainerJob::Begin(PublishRequest request, const std::optional<Partial>& partial) {
  const Content& sent = ContentOf(kind_.ranks, surroundings_.new_content());
  if (partial) {
    Declare(sent, *partial, request);
  } else {
    versions_.Published(sent);
  }
  Hold(sent, partial);
  UnderWay publish{.sent = &sent,
                   .is_partial = partial.has_value(),
                   .began = clock_.Now(),
                   .longest = kPublishTime + kGrace,
                   .leader = processes_.front()};
  if (kind_.policy == PublishPolicy::kCanary) publish.longest += kRollbackTime;
  if (publish.leader != nullptr) promises_.PublishBegins();
  for (int process = 0; process < process_count(); ++process) {
    const std::shared_ptr<Process> running = processes_[static_cast<std::size_t>(process)];
    if (running == nullptr) continue;
    const NodeId caller = scheduler_.node();
    scheduler_.Enter(running->node);  // whose the publish's threads are
    auto handle = running->publisher->Publish(request);
    scheduler_.Enter(caller);
    CHECK(handle.ok());
    publish.handles.emplace_back(process, std::move(*handle));
  }
  for (const auto& [process, handle] : publish.handles) {
    CHECK(handle->WaitPacked(Deadline::After(clock_, kPatience)).ok());
  }
  tensors_.CopyFrom(Scribble(kind_.ranks));
  return publish;
}

// It waits for the end of the older one, which is looked at once this one is packed.
TrainerJob::UnderWay TrainerJob::Supersede(UnderWay& older, PublishRequest request,
                                           const std::optional<Partial>& partial) {
  request.supersede = true;
  UnderWay newer = Begin(std::move(request), partial);
  older.longest = newer.longest += older.longest;
  return newer;
}

TrainerJob::Published TrainerJob::End(const UnderWay& publish) {
  Published published;
  for (const auto& [process, handle] : publish.handles) {
    auto report = handle->WaitCommitted(Deadline::After(clock_, kPatience));
    CHECK(report.ok());
    if (process != 0) continue;
    published.report = std::move(*report);
    promises_.PublishEnded(published.report);
    publish.leader->packed = published.report.version;
    const auto is_live = [](const ReplicaReport& replica) { return replica.status.ok(); };
    const bool heard = processes_.front() == publish.leader;
    if (heard && std::ranges::any_of(published.report.replicas, is_live)) noted_ = published.report.version;
  }
  CheckTime(publish);
  published.committed = !published.report.replicas.empty() && published.report.AllCommitted();
  published.is_partial = publish.is_partial;
  published.content = publish.sent;
  if (publish.is_partial) {
    const PartialPublish& partial = partials_.at(publish.sent->number());
    published.content = partial.content;
    if (publish.leader != nullptr) CheckScope(partial, published.report);
  }
  Check(published, kind_.name);
  return published;
}

void TrainerJob::CheckTime(const UnderWay& publish) const {
  const Duration took = clock_.Now() - publish.began - watch_.stood_still_since(publish.began);
  if (took <= publish.longest) return;
  watch_.violation("I8", fmt::format("a publish of {} took {:.1f} s", kind_.name, MsOf(took) / 1000));
}

void TrainerJob::RollBack() {
  const std::shared_ptr<Process> leader = processes_.front();
  if (leader == nullptr) return;
  const NodeId caller = scheduler_.node();
  scheduler_.Enter(leader->node);
  const auto rollback = leader->publisher->RollBack(std::nullopt, Deadline::After(clock_, kPublishTime));
  scheduler_.Enter(caller);
  if (rollback.ok() && processes_.front() == leader) noted_ = rollback->version;
}

Result<FleetWelcome> TrainerJob::Join(NodeId caller, const FleetHeartbeat& heartbeat, Deadline deadline) {
  const std::shared_ptr<Process> leader = processes_.front();
  if (leader == nullptr) return Status::Unavailable("peer_unreachable", kind_.name);
  Result<FleetWelcome> welcome = Status::Internal("unset");
  RETURN_IF_ERROR(
      network_.Call(caller, leader->node, "Join", deadline, [&] { welcome = leader->publisher->Join(heartbeat); }));
  return welcome;
}

Status TrainerJob::Leave(NodeId caller, const std::string& address, InstanceId instance, Deadline deadline) {
  const std::shared_ptr<Process> leader = processes_.front();
  if (leader == nullptr) return Status::Unavailable("peer_unreachable", kind_.name);
  return network_.Call(caller, leader->node, "Leave", deadline, [&] { leader->publisher->Leave(address, instance); });
}

std::optional<WeightVersion> TrainerJob::BroughtToAll() const {
  const std::shared_ptr<Process> leader = processes_.front();
  if (leader == nullptr || !kind_.catch_up) return std::nullopt;
  const PublisherStatus status = leader->publisher->status();
  return status.sends_again && status.committed == leader->packed ? status.committed : std::nullopt;
}

bool TrainerJob::Lacks(const std::string& address, const WeightVersion& version) const {
  const std::vector<FleetRow> fleet = processes_.front()->publisher->status().fleet;
  const auto row = std::ranges::find(fleet, address, &FleetRow::address);
  return row != fleet.end() && row->live != version;
}

void TrainerJob::CheckScope(const PartialPublish& partial, const PublishReport& report) {
  const std::string version = report.version.ToString();
  if (report.scope != partial.scope->patterns || (partial.base && report.base != partial.base)) {
    watch_.violation("scope", fmt::format("{} reports another scope or base of {}", kind_.name, version));
  }
  if (partial.base && !versions_.WasLiveSomewhere(*partial.base) && !surroundings_.is_live_now(*partial.base)) {
    watch_.violation("scope", fmt::format("{} builds {} on {}, which was live nowhere", kind_.name, version,
                                          partial.base->ToString()));
  }
}

// What the trainer is told is true, and says why where it failed.
void TrainerJob::Check(const Published& published, const std::string& who) {
  const PublishReport& report = published.report;
  const Hash256& digest = report.version.digest;
  if (!digest.IsZero() && (published.content == nullptr || digest != published.content->digest())) {
    watch_.violation("I4", fmt::format("{} digests {} otherwise than its values are", who, report.version.ToString()));
  }
  for (const ReplicaReport& replica : report.replicas) {
    if (!replica.status.ok()) {
      if (!IsListed(replica.status.reason())) {
        watch_.violation("reason", fmt::format("{}: {} is no listed reason", who, replica.status.ToString()));
      }
      continue;
    }
    if (versions_.WasLive(replica.address, report.version)) continue;
    watch_.violation("I9", fmt::format("{} is told that {} committed {}, which never went live there", who,
                                       replica.address, report.version.ToString()));
  }
}

}  // namespace bascule::simulation
