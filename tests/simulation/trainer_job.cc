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

TrainerJob::TrainerJob(Scheduler& scheduler, Network& network, const WentLive& went_live, FleetPromises& promises,
                       Watch watch, Surroundings surroundings, JobKind kind)
    : scheduler_(scheduler),
      network_(network),
      clock_(scheduler.clock()),
      went_live_(went_live),
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

TrainerJob::Published TrainerJob::Publish(const PublishRequest& request) {
  Published published;
  published.content = &ContentOf(kind_.ranks, surroundings_.new_content());
  tensors_.CopyFrom(published.content->values());
  const TimePoint began = clock_.Now();
  const std::shared_ptr<Process> leader = processes_.front();
  if (leader != nullptr) promises_.PublishBegins();
  std::vector<std::pair<int, std::shared_ptr<PublishHandle>>> handles;
  for (int process = 0; process < process_count(); ++process) {
    const std::shared_ptr<Process> running = processes_[static_cast<std::size_t>(process)];
    if (running == nullptr) continue;
    const NodeId caller = scheduler_.node();
    scheduler_.Enter(running->node);  // whose the publish's threads are
    auto handle = running->publisher->Publish(request);
    scheduler_.Enter(caller);
    CHECK(handle.ok());
    handles.emplace_back(process, std::move(*handle));
  }
  const Deadline patience = Deadline::After(clock_, std::chrono::minutes(10));
  for (const auto& [process, handle] : handles) CHECK(handle->WaitPacked(patience).ok());
  tensors_.CopyFrom(Scribble(kind_.ranks));
  for (const auto& [process, handle] : handles) {
    auto report = handle->WaitCommitted(patience);
    CHECK(report.ok());
    if (process != 0) continue;
    published.report = std::move(*report);
    promises_.PublishEnded(published.report);
    leader->packed = published.report.version;
  }
  const Duration took = clock_.Now() - began - watch_.stood_still_since(began);
  const Duration way_back = kind_.policy == PublishPolicy::kCanary ? kRollbackTime : Duration::zero();
  if (took > kPublishTime + way_back + kGrace) {
    watch_.violation("I8", fmt::format("a publish of {} took {:.1f} s", kind_.name, MsOf(took) / 1000));
  }
  published.committed = !published.report.replicas.empty() && published.report.AllCommitted();
  Check(published, kind_.name);
  return published;
}

void TrainerJob::RollBack() {
  const std::shared_ptr<Process> leader = processes_.front();
  if (leader == nullptr) return;
  const NodeId caller = scheduler_.node();
  scheduler_.Enter(leader->node);
  (void)leader->publisher->RollBack(std::nullopt, Deadline::After(clock_, kPublishTime));
  scheduler_.Enter(caller);
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

// What the trainer is told is true, and says why where it failed.
void TrainerJob::Check(const Published& published, const std::string& who) {
  const PublishReport& report = published.report;
  if (!report.version.digest.IsZero() && report.version.digest != published.content->digest()) {
    watch_.violation("I4", fmt::format("{} digests {} otherwise than its values are", who, report.version.ToString()));
  }
  for (const ReplicaReport& replica : report.replicas) {
    if (!replica.status.ok()) {
      if (!IsListed(replica.status.reason())) {
        watch_.violation("reason", fmt::format("{}: {} is no listed reason", who, replica.status.ToString()));
      }
      continue;
    }
    const auto live = went_live_.find(replica.address);
    if (live != went_live_.end() &&
        std::find(live->second.begin(), live->second.end(), report.version) != live->second.end()) {
      continue;
    }
    watch_.violation("I9", fmt::format("{} is told that {} committed {}, which never went live there", who,
                                       replica.address, report.version.ToString()));
  }
}

}  // namespace bascule::simulation
