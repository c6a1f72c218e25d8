#include "tests/simulation/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "base/worker.h"
#include "tests/simulation/engine_node.h"
#include "tests/simulation/fleet_shape.h"
#include "tests/simulation/network.h"
#include "tests/simulation/recorded_log.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/sockets.h"
#include "tests/simulation/trainer_job.h"
#include "tests/support/temp_directory.h"

namespace bascule::simulation {
namespace {

constexpr Duration kLongForASession = std::chrono::seconds(1);
constexpr Duration kQuietTime = std::chrono::seconds(15);  // longer than any session lives
// A group's first publish after a restart may find ranks late; a publisher that has a rival may not know of the rival's
// last number until it connects again.
constexpr int kTriesInCompany = 3;

std::size_t StateIndex(std::string_view name) {
  for (std::size_t state = 0; state < kSessionStates; ++state) {
    if (SessionStateName(static_cast<SessionState>(state)) == name) return state;
  }
  CHECK(false);
}

// Two of three publishes are of all tensors.
std::optional<Partial> DrawPartial(Random& random) {
  if (!random.OneIn(3)) return std::nullopt;
  const std::span<const Scope> scopes = Scopes();
  return Partial{
      .scope = &scopes[random.Below(scopes.size())], .names_base = random.OneIn(3), .has_the_rest = random.OneIn(2)};
}

template <typename Table>
void AddTable(Table& sum, const Table& other) {
  for (std::size_t row = 0; row < sum.size(); ++row) {
    for (std::size_t kind = 0; kind < kFaultKinds; ++kind) sum[row][kind] += other[row][kind];
  }
}

class World {
 public:
  World(std::uint64_t seed, const FaultSchedule& faults, Tally& tally, bool log)
      : random_(seed),
        pending_(faults),
        tally_(tally),
        log_(log),
        scheduler_(seed),
        clock_(scheduler_.clock()),
        network_(scheduler_, [this](const Passage& passage) { return OnPassage(passage); }),
        sockets_(scheduler_, [this](NodeId from) { OnSocketMessage(from); }),
        shape_(DrawFleet(random_, directory_.path())),
        promises_(shape_.policy, watch_) {
    ListenToLog([this](std::string_view event, std::string_view fields) { OnLog(event, fields); });
  }
  ~World() { ListenToLog({}); }

  Outcome Run() {
    const Status end = scheduler_.Run([this] { Direct(); });
    tally_.switches += scheduler_.switches();
    ++tally_.schedules;
    return {end, scheduler_.trace()};
  }

 private:
  struct Engine {
    EngineKind kind;
    std::string address;
    std::shared_ptr<EngineNode> node;  // null while it is down; shared with calls that it answers
  };
  struct Order {
    FaultKind kind;
    std::uint64_t detail;
    int engine;
    int job;
    int process;
  };
  struct Return {
    TimePoint at;
    std::function<void()> start;
  };

  void Direct();
  void Build();
  EngineSurroundings Surroundings();
  std::shared_ptr<EngineNode> EngineAt(const std::string& address) const;
  Status Fetch(const std::string& holder, const PeerRequest& request, Deadline deadline);
  Status Judge(const CanaryView& canary);
  void StartEngine(Engine& engine);
  void RunJob(TrainerJob& job, int publishes);
  TrainerJob::Published PublishSome(TrainerJob& job, Random& random);
  const TrainerJob::Published& Counted(const TrainerJob::Published& published);
  void FollowOrders();
  void Follow(const Order& order);
  void KillEngine(Engine& engine);
  void Heal();
  void CheckCaughtUp();
  void CheckFetched(const Engine& engine);
  void CheckHealed();
  void CheckCommitted(const TrainerJob::Published& published);
  std::optional<std::uint64_t> NumberThatAllTake(const WeightVersion& version) const;
  void AwaitFollowers(const WeightVersion& version);
  void TearDown();

  std::optional<Fault> OnPassage(const Passage& passage);
  void OnSocketMessage(NodeId from);
  std::optional<Fault> Step(int engine, int job, int process, NodeId from, NodeId to, bool is_message);
  void NoteMessage(const Passage& passage);
  void CountFault(FaultKind fault, SessionState state, const Engine& replica);
  void Strike(const Fault& fault, int engine, int job, int process, NodeId from, NodeId to);
  void OnLog(std::string_view event, std::string_view fields);
  Duration StoodStillSince(TimePoint since) const;
  int EngineOf(NodeId node) const;
  std::pair<int, int> JobOf(NodeId node) const;
  void Violation(std::string_view invariant, const std::string& what) {
    if (log_) Print("VIOLATION {}: {}", invariant, what);
    scheduler_.Abandon(invariant, what);
  }
  template <typename... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) const {
    const double seconds = MsOf(scheduler_.now() - TimePoint(std::chrono::hours(1000))) / 1000;
    fmt::print("{:10.6f} step {:3} node {:2}  {}\n", seconds, step_, scheduler_.node(),
               fmt::format(format, std::forward<Args>(args)...));
  }

  Random random_;
  FaultSchedule pending_;  // has not struck yet
  Tally& tally_;
  const bool log_;
  Scheduler scheduler_;
  Clock& clock_;
  Network network_;
  Sockets sockets_;
  const TempDirectory directory_{"/dev/shm/simulation_"};  // no schedule waits for a disk
  const FleetShape shape_;
  VersionRecord versions_;
  const Watch watch_{
      .violation = [this](std::string_view invariant, const std::string& what) { Violation(invariant, what); },
      .stood_still_since = [this](TimePoint since) { return StoodStillSince(since); }};
  FleetPromises promises_;
  const EngineSurroundings surroundings_ = Surroundings();
  std::vector<Engine> engines_;
  std::vector<std::unique_ptr<TrainerJob>> jobs_;
  std::vector<Worker> undertakers_;

  std::set<std::string> engine_committed_;  // sessions, as their logs say
  std::map<std::string, TimePoint> begun_;  // sessions

  NodeId next_node_ = 1;
  int next_content_ = 0;
  std::uint64_t step_ = 0;
  bool harmed_ = false;                                       // by a fault other than a message that comes twice
  bool faulty_ = true;                                        // until the network heals
  bool watching_ = true;                                      // until the fleet is taken down
  std::vector<std::pair<TimePoint, TimePoint>> stood_still_;  // a process, or the machine
  int running_jobs_ = 0;

  Mutex mu_;
  CondVar changed_;
  std::deque<Order> orders_;
  std::vector<Return> returns_;  // processes that come back
};

// The first fiber: builds the fleet, carries out what faults order, heals, and looks at what is left.
void World::Direct() {
  scheduler_.GoFirst();
  Build();
  std::vector<Worker> drivers;
  running_jobs_ = static_cast<int>(jobs_.size());
  for (const auto& job : jobs_) {
    const int publishes = static_cast<int>(random_.Between(1, 3));
    drivers.emplace_back("job", [this, &job, publishes](const std::stop_token&) { RunJob(*job, publishes); });
  }
  FollowOrders();
  drivers.clear();
  Heal();
  CheckHealed();
  TearDown();
}

void World::Build() {
  versions_.Published(BaseContent());
  for (const ReplicaShape& replica : shape_.replicas) {
    engines_.push_back({.kind = replica.kind, .address = replica.address, .node = nullptr});
  }
  for (Engine& engine : engines_) StartEngine(engine);
  for (const JobKind& kind : shape_.jobs) {
    TrainerJob::Surroundings surroundings{.new_node = [this] { return next_node_++; },
                                          .new_content = [this] { return next_content_++; },
                                          .gate = [this](const CanaryView& canary) { return Judge(canary); },
                                          .is_live_now =
                                              [this](const WeightVersion& version) {
                                                return std::ranges::any_of(engines_, [&](const Engine& engine) {
                                                  return engine.node != nullptr && engine.node->IsLiveNow(version);
                                                });
                                              },
                                          .journal = directory_.File(kind.name)};
    jobs_.push_back(std::make_unique<TrainerJob>(scheduler_, network_, versions_, promises_, watch_,
                                                 std::move(surroundings), kind));
  }
}

EngineSurroundings World::Surroundings() {
  return {.engine_at = [this](const std::string& address) { return EngineAt(address); },
          .join = [this](const FleetHeartbeat& heartbeat, Deadline deadline) -> Result<FleetWelcome> {
            if (jobs_.empty()) return Status::Unavailable("peer_unreachable", "no trainer");
            return jobs_.front()->Join(scheduler_.node(), heartbeat, deadline);
          },
          .leave =
              [this](const std::string& address, InstanceId instance, Deadline deadline) {
                if (jobs_.empty()) return Status::Unavailable("peer_unreachable", "no trainer");
                return jobs_.front()->Leave(scheduler_.node(), address, instance, deadline);
              },
          .fetch = [this](const std::string& holder, const PeerRequest& request,
                          Deadline deadline) { return Fetch(holder, request, deadline); }};
}

std::shared_ptr<EngineNode> World::EngineAt(const std::string& address) const {
  const auto found = std::ranges::find(engines_, address, &Engine::address);
  return found == engines_.end() ? nullptr : found->node;
}

Status World::Fetch(const std::string& holder, const PeerRequest& request, Deadline deadline) {
  const std::shared_ptr<EngineNode> peer = EngineAt(holder);
  if (peer == nullptr) return Status::Unavailable("peer_unreachable", holder);
  Status sent;
  RETURN_IF_ERROR(network_.Call(scheduler_.node(), peer->node(), "SendLive", deadline,
                                [&] { sent = peer->SendLiveTo(request, deadline); }));
  return sent;
}

// A gate that takes its time, and refuses every third version until the faults are over.
Status World::Judge(const CanaryView& canary) {
  const WeightVersion& version = canary.flip.version;
  promises_.Judging(canary.address, version);
  clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(scheduler_.RandomBits() % 400), canary.stop);
  const Content* const content = versions_.Find(version.digest);
  const bool let_through = !faulty_ || content == nullptr || content->number() % 3 != 1;
  ++(let_through ? tally_.let_through : tally_.refused);
  promises_.Judged(version, let_through);
  return let_through ? OkStatus() : Status::DataLoss(std::string(kGateReason), "the simulation's gate says so");
}

void World::StartEngine(Engine& engine) {
  engine.node = std::make_shared<EngineNode>(scheduler_, network_, versions_, promises_, surroundings_, watch_,
                                             next_node_++, engine.address, engine.kind);
}

void World::RunJob(TrainerJob& job, int publishes) {
  Random random(scheduler_.RandomBits());
  for (int i = 0; i < publishes; ++i) {
    const TrainerJob::Published published = PublishSome(job, random);
    if (shape_.policy != PublishPolicy::kEach && random.OneIn(8)) job.RollBack();
    clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(random.Below(500)), {});
  }
  MutexLock lock(mu_);
  --running_jobs_;
  changed_.NotifyAll();
}

// The next version; or that, and one that supersedes it.
TrainerJob::Published World::PublishSome(TrainerJob& job, Random& random) {
  PublishRequest request{.number = std::nullopt, .labels = {}, .take_over = jobs_.size() > 1 && random.OneIn(3)};
  if (random.OneIn(8)) request.number = 1 + random.Below(6);
  TrainerJob::UnderWay publish = job.Begin(request, DrawPartial(random));
  if (shape_.policy != PublishPolicy::kEach || !random.OneIn(8)) return Counted(job.End(publish));
  clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(random.Below(3)), {});
  request.number.reset();
  const TrainerJob::UnderWay newer = job.Supersede(publish, request, DrawPartial(random));
  Counted(job.End(publish));
  return Counted(job.End(newer));
}

const TrainerJob::Published& World::Counted(const TrainerJob::Published& published) {
  const bool partial = published.is_partial;
  ++tally_.publishes;
  if (published.committed) ++tally_.committed;
  if (partial) ++tally_.partial;
  if (partial && published.committed) ++tally_.partial_committed;
  for (const ReplicaReport& replica : published.report.replicas) {
    if (partial && replica.status.reason() == "wrong_base") ++tally_.wrong_base;
    if (partial && replica.status.reason() == "superseded") ++tally_.superseded;
    if (log_) {
      Print("published {} to {}: {} {}", published.report.version.ToString(), replica.address, replica.phase,
            replica.status.ToString());
    }
  }
  return published;
}

void World::FollowOrders() {
  MutexLock lock(mu_);
  while (running_jobs_ > 0) {
    if (!orders_.empty()) {
      const Order order = orders_.front();
      orders_.pop_front();
      Follow(order);
      continue;
    }
    TimePoint next = clock_.Now() + std::chrono::minutes(1);
    for (std::size_t i = 0; i < returns_.size(); ++i) {
      if (returns_[i].at <= clock_.Now()) {
        const auto start = std::move(returns_[i].start);
        returns_.erase(returns_.begin() + static_cast<std::ptrdiff_t>(i));
        start();
        next = clock_.Now();
        break;
      }
      next = std::min(next, returns_[i].at);
    }
    if (next > clock_.Now()) clock_.WaitUntil(changed_, mu_, next);
  }
}

void World::Follow(const Order& order) {
  Engine& engine = engines_[static_cast<std::size_t>(order.engine)];
  TrainerJob& job = *jobs_[static_cast<std::size_t>(order.job)];
  const TimePoint soon = clock_.Now() + std::chrono::milliseconds(order.detail % 400);
  switch (order.kind) {
    case FaultKind::kKillEngine:
    case FaultKind::kRestartEngine:
      KillEngine(engine);
      if (order.kind == FaultKind::kRestartEngine) {
        returns_.push_back({soon, [this, &engine] {
                              if (engine.node == nullptr) StartEngine(engine);
                            }});
      }
      return;
    case FaultKind::kKillTrainer:
    case FaultKind::kRestartTrainer:
      job.Kill(order.process);
      if (order.kind == FaultKind::kRestartTrainer) {
        returns_.push_back({soon, [&job, process = order.process] {
                              if (job.node(process) == 0) job.Start(process);
                            }});
      }
      return;
    case FaultKind::kCancel:
      job.Cancel(order.process);
      return;
    case FaultKind::kRollback:
      if (engine.node != nullptr) engine.node->RollBack(std::chrono::milliseconds(1 + order.detail % 2000));
      return;
    case FaultKind::kHoldLease:
      if (engine.node != nullptr) engine.node->HoldLease(std::chrono::milliseconds(1 + order.detail % 7000));
      return;
    default:
      return;
  }
}

void World::KillEngine(Engine& engine) {
  if (engine.node == nullptr) return;
  engine.node->StopChecking();
  network_.Sever(engine.node->node());
  sockets_.Sever(engine.node->node());
  std::shared_ptr<EngineNode> node = std::exchange(engine.node, nullptr);
  undertakers_.emplace_back("undertaker", [this, node = std::move(node)](const std::stop_token&) mutable {
    scheduler_.Enter(node->node());
    while (node.use_count() > 1) clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(1), {});
    node.reset();
  });
}

void World::Heal() {
  faulty_ = false;
  network_.Heal();
  scheduler_.EndStalls();
  for (Engine& engine : engines_) {
    // A canary needs a version to go back to: one that has lost its own starts with its base weights.
    if (shape_.policy == PublishPolicy::kCanary && engine.node != nullptr && engine.node->lost()) KillEngine(engine);
    if (engine.node == nullptr) StartEngine(engine);
    engine.node->FailCopies(0, 0);
  }
  for (const auto& job : jobs_) {
    for (int process = 0; process < job->process_count(); ++process) {
      if (job->node(process) == 0) job->Start(process);
    }
  }
  clock_.SleepUntil(clock_.Now() + kQuietTime, {});
}

// Where the publisher has the bytes of what the fleet has committed, nobody lacks that for long.
void World::CheckCaughtUp() {
  const std::optional<WeightVersion> version = jobs_.front()->BroughtToAll();
  if (!version) return;
  for (const Engine& engine : engines_) {
    // Of one that is listed and tells nothing of itself, the publisher learns in the next publish that it starts anew.
    const bool belongs = engine.kind.joins || jobs_.front()->Lacks(engine.address, *version);
    // One that was rolled back from it, or had the number before a trainer gave it away again, stays behind.
    const bool refuses = engine.node->WasLive(*version) || engine.node->HighestNumber(version->run) >= version->number;
    if (!belongs || engine.node->HasLive(*version) || refuses) continue;
    Violation("fleet", fmt::format("{} has not been brought {}", engine.address, version->ToString()));
  }
}

// Who has joined, lacks what the fleet has, and is told that the publisher cannot bring it, has it from a peer.
void World::CheckFetched(const Engine& engine) {
  const std::optional<FleetWelcome> welcome = engine.node->waits_for();
  if (!welcome || !welcome->required || welcome->publisher_sends) return;
  const WeightVersion& version = *welcome->required;
  if (engine.node->WasLive(version) || engine.node->HighestNumber(version.run) >= version.number) return;
  for (const std::string& holder : welcome->holders) {
    if (!EngineAt(holder)->HasLive(version)) continue;
    Violation("fleet", fmt::format("{} waits for {}, which {} has", engine.address, version.ToString(), holder));
  }
}

// After the faults are over the next sync commits, everywhere, and every byte is that of its version.
void World::CheckHealed() {
  for (const Engine& engine : engines_) {
    engine.node->CheckQuiet();
    CheckFetched(engine);
  }
  CheckCaughtUp();
  for (const auto& job : jobs_) {
    const int tries = job->process_count() > 1 || jobs_.size() > 1 ? kTriesInCompany : 1;
    TrainerJob::Published published;
    PublishRequest request{.number = std::nullopt, .labels = {}, .take_over = jobs_.size() > 1};
    for (int i = 0; i < tries && !published.committed; ++i) published = job->Publish(request);
    request.number = NumberThatAllTake(published.report.version);
    if (request.number) published = job->Publish(request);
    CheckCommitted(published);
    // Everybody has its base.
    Random random(scheduler_.RandomBits());
    request.number.reset();
    if (const auto partial = DrawPartial(random); partial && random.OneIn(3)) {
      CheckCommitted(Counted(job->Publish(request, partial)));
    }
  }
  clock_.SleepUntil(clock_.Now() + std::chrono::seconds(1), {});
  for (const Engine& engine : engines_) engine.node->CheckQuiet();
}

void World::CheckCommitted(const TrainerJob::Published& published) {
  if (!published.committed) {
    std::string why;
    for (const ReplicaReport& replica : published.report.replicas) why += "\n  " + replica.status.ToString();
    Violation("heal", "the next sync does not commit:" + why);
  }
  AwaitFollowers(published.report.version);
  for (const Engine& engine : engines_) {
    engine.node->CheckLive(*published.content, published.report.version.number);
  }
}

// A number is forgotten when everybody whom the publisher asks has died since. Engines that follow still know it: they
// refuse what comes under it, and take the next one.
std::optional<std::uint64_t> World::NumberThatAllTake(const WeightVersion& version) const {
  std::uint64_t highest = 0;
  for (const Engine& engine : engines_) {
    if (engine.kind.daemon.empty() || engine.node->WasLive(version)) continue;
    highest = std::max(highest, engine.node->HighestNumber(version.run));
  }
  return highest < version.number ? std::nullopt : std::optional(highest + 1);
}

// Engines that follow a daemon come a moment later than it.
void World::AwaitFollowers(const WeightVersion& version) {
  const Deadline deadline = Deadline::After(clock_, kQuietTime);
  for (const Engine& engine : engines_) {
    while (!engine.kind.daemon.empty() && !engine.node->HasLive(version) && !deadline.Passed(clock_)) {
      clock_.SleepUntil(clock_.Now() + std::chrono::milliseconds(20), {});
    }
  }
}

void World::TearDown() {
  watching_ = false;
  jobs_.clear();
  for (Engine& engine : engines_) engine.node->StopChecking();
  engines_.clear();
  undertakers_.clear();
  if (network_.open_ends() != 0)
    Violation("I6", fmt::format("{} channel or route ends are left", network_.open_ends()));
}

Duration World::StoodStillSince(TimePoint since) const {
  Duration time{};
  for (const auto& [from, until] : stood_still_) {
    time += std::max(Duration::zero(), std::min(until, clock_.Now()) - std::max(from, since));
  }
  return time;
}

int World::EngineOf(NodeId node) const {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i].node != nullptr && engines_[i].node->node() == node) return static_cast<int>(i);
  }
  return -1;
}

std::pair<int, int> World::JobOf(NodeId node) const {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (const auto process = jobs_[i]->ProcessOf(node)) return {static_cast<int>(i), *process};
  }
  return {-1, -1};
}

// What a process says to itself passes no wire.
std::optional<Fault> World::OnPassage(const Passage& passage) {
  if (passage.from == passage.to) return std::nullopt;
  if (log_) Print("{} -> {}: {}", passage.from, passage.to, passage.what);
  NoteMessage(passage);
  if (!faulty_) return std::nullopt;
  int engine = std::max(EngineOf(passage.from), EngineOf(passage.to));
  auto [job, process] = std::max(JobOf(passage.from), JobOf(passage.to));
  return Step(engine, job, process, passage.from, passage.to, /*is_message=*/true);
}

void World::NoteMessage(const Passage& passage) {
  if (passage.message == nullptr) return;
  if (const auto* accept = std::get_if<Accept>(passage.message)) {
    const int engine = EngineOf(passage.from);
    if (engine >= 0) engines_[static_cast<std::size_t>(engine)].node->OnAccept(accept->session);
  }
  const auto* offer = std::get_if<Offer>(passage.message);
  if (offer == nullptr) return;
  const int job = JobOf(passage.from).first;
  if (job >= 0) jobs_[static_cast<std::size_t>(job)]->OnOffer(offer->manifest);
  const int engine = EngineOf(passage.to);
  if (engine >= 0 && offer->manifest.base) engines_[static_cast<std::size_t>(engine)].node->OnPartialOffer(*offer);
}

// The kernel neither loses nor damages what passes between processes of one host; they die and stall like others.
void World::OnSocketMessage(NodeId from) {
  const int engine = EngineOf(from);
  if (engine < 0 || !watching_) return;
  if (log_) Print("{} says something on a socket", from);
  (void)Step(engine, 0, 0, from, from, /*is_message=*/false);
}

// One step of the schedule: the first fault whose turn it is strikes, or hits the message.
std::optional<Fault> World::Step(int engine, int job, int process, NodeId from, NodeId to, bool is_message) {
  ++step_;
  if (!faulty_ || jobs_.empty()) return std::nullopt;
  const auto state_of = [this](std::size_t index) {
    const auto& node = engines_[index].node;
    return static_cast<SessionState>(StateIndex(node == nullptr ? "idle" : node->session_state()));
  };
  const auto due = std::find_if(pending_.begin(), pending_.end(), [&](const Fault& fault) {
    return fault.at <= step_ && (is_message || !HitsMessage(fault.kind)) &&
           (!fault.aim || (engine >= 0 && *fault.aim == state_of(static_cast<std::size_t>(engine))));
  });
  if (due == pending_.end()) return std::nullopt;
  const Fault fault = *due;
  pending_.erase(due);
  if (engine < 0) engine = static_cast<int>(fault.detail % engines_.size());
  if (job < 0) std::tie(job, process) = std::pair(static_cast<int>(fault.detail % jobs_.size()), 0);
  const SessionState state = state_of(static_cast<std::size_t>(engine));
  ++tally_.faults;
  harmed_ |= fault.kind != FaultKind::kDuplicate;
  CountFault(fault.kind, state, engines_[static_cast<std::size_t>(engine)]);
  if (log_)
    Print("FAULT {} (engine {} {}, trainer {}.{})", ToString(fault), engine, SessionStateName(state), job, process);
  if (HitsMessage(fault.kind)) return fault;
  Strike(fault, engine, job, process, from, to);
  return std::nullopt;
}

// Locks may be held here: what has to wait is left to the first fiber, which goes on before all others.
void World::Strike(const Fault& fault, int engine, int job, int process, NodeId from, NodeId to) {
  const Duration time = std::chrono::milliseconds(1 + fault.detail % 8000);
  EngineNode* const node = engines_[static_cast<std::size_t>(engine)].node.get();
  switch (fault.kind) {
    case FaultKind::kPartition:
      network_.Partition(from, to, clock_.Now() + time);
      return;
    case FaultKind::kStallEngine:
    case FaultKind::kStallTrainer: {
      const NodeId stalled = fault.kind == FaultKind::kStallTrainer
                                 ? jobs_[static_cast<std::size_t>(job)]->node(process)
                                 : (node == nullptr ? 0 : node->node());
      if (stalled == 0) return;
      stood_still_.emplace_back(clock_.Now(), clock_.Now() + time);
      scheduler_.Stall(stalled, clock_.Now() + time);
      return;
    }
    case FaultKind::kFailCopy:
      if (node != nullptr)
        node->FailCopies(static_cast<int>(fault.detail / 3 % 4), static_cast<int>(1 + fault.detail % 3));
      return;
    case FaultKind::kLeap:
      stood_still_.emplace_back(clock_.Now(), clock_.Now() + time);
      scheduler_.Leap(time);
      return;
    default:
      orders_.push_back({fault.kind, fault.detail, engine, job, process});
      changed_.NotifyAll();
      return;
  }
}

void World::CountFault(FaultKind fault, SessionState state, const Engine& replica) {
  const auto kind = static_cast<std::size_t>(fault);
  const Role role = replica.kind.is_daemon         ? Role::kDaemon
                    : !replica.kind.daemon.empty() ? Role::kFollower
                    : replica.kind.joins           ? Role::kMember
                                                   : Role::kEngine;
  ++tally_.in_state[static_cast<std::size_t>(state)][kind];
  ++tally_.on_role[static_cast<std::size_t>(role)][kind];
  ++tally_.at_moment[static_cast<std::size_t>(promises_.moment())][kind];
  const bool partial = replica.node != nullptr && replica.node->session_is_partial();
  if (partial) ++tally_.in_partial[static_cast<std::size_t>(state)][kind];
}

void World::OnLog(std::string_view event, std::string_view fields) {
  if (log_) Print("{} {}", event, fields);
  if (event == "session_committed" && !engine_committed_.contains(std::string(FieldOf(fields, "session")))) {
    Violation("log", fmt::format("no engine has committed what a trainer says: {}", fields));
  }
  if (event == "session_state" && FieldOf(fields, "event") == "offer") {
    begun_.emplace(FieldOf(fields, "session"), clock_.Now());
  }
  // One that an engine begins for itself may begin when its time is nearly over.
  if (event == "session_aborted" && !harmed_ && fields.find(" deadline:") != std::string_view::npos &&
      clock_.Now() - begun_[std::string(FieldOf(fields, "session"))] > kLongForASession) {
    Violation("I4", fmt::format("messages came twice at worst, and a session does not get on: {}", fields));
  }
  if (!watching_ || (event != "session_state" && event != "session_aborted")) return;
  const int engine = EngineOf(scheduler_.node());
  if (engine < 0) return;
  const std::string_view state = event == "session_aborted" ? "aborted" : FieldOf(fields, "state");
  Engine& replica = engines_[static_cast<std::size_t>(engine)];
  replica.node->OnSessionState(FieldOf(fields, "session"), state);
  if (state == "ready") promises_.ReplicaIsReady(replica.address, FieldOf(fields, "version"));
  if (state == "committed") {
    ++tally_.flips;
    if (!replica.kind.daemon.empty()) ++tally_.followed;
    if (replica.node->session_is_partial()) ++tally_.partial_flips;
    if (shape_.jobs.front().catch_up && promises_.moment() == Moment::kNoPublish) ++tally_.caught_up;
    engine_committed_.emplace(FieldOf(fields, "session"));
  }
  if (event == "session_aborted" || jobs_.empty()) return;  // its state has been a step
  const int job = static_cast<int>(step_ % jobs_.size());
  const int process = static_cast<int>(step_) % jobs_[static_cast<std::size_t>(job)]->process_count();
  (void)Step(engine, job, process, scheduler_.node(), jobs_[static_cast<std::size_t>(job)]->node(process),
             /*is_message=*/false);
}

}  // namespace

std::string_view RoleName(Role role) {
  constexpr std::array<std::string_view, kRoles> kNames = {"engine", "member", "daemon", "follower"};
  return kNames.at(static_cast<std::size_t>(role));
}

void Tally::Add(const Tally& other) {
  schedules += other.schedules;
  switches += other.switches;
  publishes += other.publishes;
  committed += other.committed;
  flips += other.flips;
  followed += other.followed;
  caught_up += other.caught_up;
  partial += other.partial;
  partial_committed += other.partial_committed;
  partial_flips += other.partial_flips;
  wrong_base += other.wrong_base;
  superseded += other.superseded;
  let_through += other.let_through;
  refused += other.refused;
  faults += other.faults;
  AddTable(in_state, other.in_state);
  AddTable(at_moment, other.at_moment);
  AddTable(on_role, other.on_role);
  AddTable(in_partial, other.in_partial);
}

Outcome RunSchedule(std::uint64_t seed, const FaultSchedule& faults, Tally& tally, bool log) {
  // Left where it is after a failure: fibers that stand still use it.
  auto* const world = new World(seed, faults, tally, log);
  Outcome outcome = world->Run();
  if (outcome.status.ok()) delete world;
  return outcome;
}

}  // namespace bascule::simulation
