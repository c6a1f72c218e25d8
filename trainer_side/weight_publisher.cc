#include "trainer_side/weight_publisher.h"

#include <algorithm>
#include <list>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/group/group_leader.h"
#include "bridge/send/weight_device.h"
#include "trainer_side/member_driver.h"
#include "trainer_side/pending_publish.h"
#include "trainer_side/publish_history.h"
#include "trainer_side/replica_driver.h"

namespace bascule {
namespace {

// A publish that others wait for ends by its own deadline, or soon after it is cancelled.
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr std::int64_t kMinBucketBytes = 4096;
constexpr std::int64_t kBucketAlignment = 64;

Status BadOptions(const std::string& why) { return Status::InvalidArgument("bad_options", why); }

Status CheckGroup(const TrainerGroup& group) {
  if (group.world_size < 1 || group.world_size > kMaxGroupRanks || group.rank < 0 || group.rank >= group.world_size) {
    return BadOptions(fmt::format("trainer rank {} of {}", group.rank, group.world_size));
  }
  if (group.world_size == 1) return OkStatus();
  if (group.leader.empty()) return BadOptions("a group without the address of its rank 0");
  if (group.rank == 0 && group.host == nullptr) return BadOptions("rank 0 of a group without a host to listen with");
  return OkStatus();
}

// What is sent lies on a device, unless a snapshot brings it to the host.
const WeightDevice* SendsFrom(const WeightPublisherOptions& options, const TensorSource& source) {
  return options.snapshot == Snapshot::kHost ? nullptr : source.device();
}

Status CheckDevice(const WeightPublisherOptions& options, const TensorSource& source) {
  if (options.snapshot == Snapshot::kDevice && source.device() == nullptr) {
    return BadOptions("a snapshot on a device, of tensors in host memory");
  }
  if (DialersFor(SendsFrom(options, source), options.transports).empty()) {
    return BadOptions("none of the transports carries what lies where the tensors, or their snapshot, do");
  }
  return source.CheckReachable();
}

Status CheckOptions(const WeightPublisherOptions& options) {
  RETURN_IF_ERROR(CheckGroup(options.group));
  const bool leads = options.group.rank == 0;
  const bool may_wait = options.catch_up && !options.run.empty();  // for replicas that join
  if (leads && options.replicas.empty() && !may_wait)
    return Status::InvalidArgument("no_replica", "the publisher has no replica to send to");
  if (std::set<std::string>(options.replicas.begin(), options.replicas.end()).size() != options.replicas.size()) {
    return BadOptions("a replica is named twice");
  }
  if (options.control == nullptr || options.clock == nullptr) return BadOptions("no control dialer or no clock");
  if (options.transports.empty() || std::count(options.transports.begin(), options.transports.end(), nullptr) > 0) {
    return BadOptions("no transport, or one that is null");
  }
  if (options.new_run && options.run.empty()) return BadOptions("new_run without the name of the run");
  if (options.bucket_bytes < kMinBucketBytes || options.bucket_bytes % kBucketAlignment != 0 ||
      options.bucket_bytes > kMaxFrameBytes) {
    return BadOptions(fmt::format("bucket_bytes={} is not a multiple of {} in [{}, {}]", options.bucket_bytes,
                                  kBucketAlignment, kMinBucketBytes, kMaxFrameBytes));
  }
  if (options.credits < 1 || options.credits > kMaxCredits) {
    return BadOptions(fmt::format("credits={} is not in [1, {}]", options.credits, kMaxCredits));
  }
  if (options.policy == PublishPolicy::kCanary && leads && !options.gate) return BadOptions("a canary without a gate");
  if (options.min_replicas < 1) return BadOptions(fmt::format("min_replicas={} is not positive", options.min_replicas));
  if (options.max_bytes_per_second < 0) return BadOptions("max_bytes_per_second is negative");
  if (options.connect_timeout <= Duration::zero() || options.deadline <= Duration::zero()) {
    return BadOptions("connect_timeout and deadline are positive");
  }
  return OkStatus();
}

class Publisher final : public WeightPublisher {
 public:
  Publisher(const WeightPublisherOptions& options, TensorSource source)
      : clock_(*options.clock),
        deadline_(options.deadline),
        catch_up_(options.catch_up),
        leads_(options.group.rank == 0),
        source_(std::move(source)),
        roster_(options.fleet, options.replicas) {}
  ~Publisher() override;

  const TensorSource& source() const { return source_; }
  void Drive(std::unique_ptr<PublishDriver> driver) EXCLUDES(mu_);

  Result<std::shared_ptr<PublishHandle>> Publish(PublishRequest request) override EXCLUDES(mu_);
  void Cancel() override EXCLUDES(mu_);
  Result<FleetWelcome> Join(const FleetHeartbeat& heartbeat) override EXCLUDES(mu_);
  void Leave(const std::string& address, InstanceId instance) override EXCLUDES(mu_);
  Result<FleetRollback> RollBack(std::optional<std::uint64_t> to, Deadline deadline) override EXCLUDES(mu_);
  std::string group_address() const override { return driver_->group_address(); }
  PublisherStatus status() const override EXCLUDES(mu_);
  std::vector<PublishReport> History() const override EXCLUDES(mu_);
  Result<std::uint64_t> WaitForChange(std::uint64_t seen, Deadline deadline) const override EXCLUDES(mu_);

 private:
  // One use of the driver: under way, or waiting for those before it.
  struct Turn {
    bool gives_way = false;  // a catch-up: every publish comes first
    Cancellation cancel;
    bool over = false;  // guarded by mu_
    Worker worker;      // of a publish; last: joined before the rest goes
  };

  Turn& TakeTurn(bool gives_way) REQUIRES(mu_);
  bool Busy() const REQUIRES(mu_);  // with more than a catch-up
  // Those under way or waiting give way to what comes next.
  void Supersede() REQUIRES(mu_);
  // Waits for every turn before this one.
  void AwaitTurn(const Turn& own) REQUIRES(mu_);
  void Run(Turn& own, PublishRequest request, PendingPublish& pending) EXCLUDES(mu_);
  void Record(const PublishReport& report, Turn& own) EXCLUDES(mu_);
  void NoteInRoster(const std::vector<ReplicaReport>& replicas, const WeightVersion& version) REQUIRES(mu_);
  void EndTurn(Turn& own) REQUIRES(mu_);
  // While nobody has the driver.
  void NoteWhatCanBeSent() REQUIRES(mu_);
  void Changed() REQUIRES(mu_);

  // Of a rank that follows: sends its part again, between publishes, when the leader catches somebody up.
  void KeepAttending(const std::stop_token& stop) EXCLUDES(mu_);
  // Its turn, once there may be something to attend to; waits a while where there is nothing.
  Turn* NextAttendance() EXCLUDES(mu_);
  // Brings what the fleet has committed to replicas that lack it, between publishes.
  void KeepCaughtUp(const std::stop_token& stop) EXCLUDES(mu_);
  // What to do now, and its turn; waits a while where there is nothing.
  std::optional<PublishJob> NextCatchUp(Turn** turn) EXCLUDES(mu_);

  Clock& clock_;
  const Duration deadline_;
  const bool catch_up_;
  const bool leads_;
  const TensorSource source_;
  std::unique_ptr<PublishDriver> driver_;  // of whoever has the turn

  mutable Mutex mu_;  // Guards what others ask for; never held across a wait but for changes.
  mutable CondVar changed_;
  PublisherStatus status_ GUARDED_BY(mu_);
  FleetRoster roster_ GUARDED_BY(mu_);
  bool sends_again_ GUARDED_BY(mu_) = false;  // the driver has the bytes of what the fleet has committed
  PublishHistory history_ GUARDED_BY(mu_);
  std::uint64_t change_ GUARDED_BY(mu_) = 1;
  std::list<Turn> turns_ GUARDED_BY(mu_);  // oldest first; those that are over until the next begins
  Worker catch_up_worker_;
};

void Publisher::Drive(std::unique_ptr<PublishDriver> driver) {
  driver_ = std::move(driver);
  if (!catch_up_) return;
  catch_up_worker_ =
      Worker("fleet", [this](const std::stop_token& stop) { leads_ ? KeepCaughtUp(stop) : KeepAttending(stop); });
}

Publisher::~Publisher() {
  catch_up_worker_.RequestStop();
  Cancel();
  catch_up_worker_.Join();
  std::list<Turn> turns;
  MutexLock lock(mu_);
  while (status_.publishing) clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
  turns.swap(turns_);
}

Result<std::shared_ptr<PublishHandle>> Publisher::Publish(PublishRequest request) {
  if (!request.ready.empty() && source_.device() == nullptr) {
    return BadOptions("ready events of tensors in host memory");
  }
  MutexLock lock(mu_);
  if (Busy() && !request.supersede) {
    return Status::FailedPrecondition("publish_in_progress", "the one before has not ended");
  }
  Supersede();
  Turn& own = TakeTurn(/*gives_way=*/false);
  // Shared by the caller and the publish thread, either of which may be the last.
  auto pending = std::make_shared<PendingPublish>(clock_);
  own.worker = Worker("publish", [this, &own, request = std::move(request), pending](const std::stop_token&) {
    Run(own, request, *pending);
  });
  return std::shared_ptr<PublishHandle>(std::move(pending));
}

void Publisher::Run(Turn& own, PublishRequest request, PendingPublish& pending) {
  PublishJob job{.request = std::move(request)};
  {
    MutexLock lock(mu_);
    AwaitTurn(own);
    job.newest = status_.newest;
    job.replicas = roster_.Targets(clock_.Now());
    job.committed = roster_.committed();
    job.highest = roster_.highest();
    roster_.Began(job.replicas);
    Changed();
  }
  if (source_.device() != nullptr) source_.device()->SetReady(job.request.ready);
  PublishReport report = driver_->Run(job, pending, Deadline::After(clock_, deadline_), own.cancel);
  if (source_.device() != nullptr) source_.device()->SetReady({});
  Record(report, own);
  pending.Finish(std::move(report));
}

void Publisher::Cancel() {
  MutexLock lock(mu_);
  for (Turn& turn : turns_) turn.cancel.Request(Status::Cancelled("cancelled", "the publisher stopped it"));
  changed_.NotifyAll();
}

Publisher::Turn& Publisher::TakeTurn(bool gives_way) {
  turns_.remove_if([](const Turn& turn) { return turn.over; });
  status_.publishing = true;
  Changed();
  Turn& own = turns_.emplace_back();
  own.gives_way = gives_way;
  return own;
}

bool Publisher::Busy() const {
  return std::any_of(turns_.begin(), turns_.end(), [](const Turn& turn) { return !turn.over && !turn.gives_way; });
}

void Publisher::Supersede() {
  for (Turn& turn : turns_) turn.cancel.Request(Status::Aborted("superseded", "the trainer publishes a newer version"));
}

void Publisher::AwaitTurn(const Turn& own) {
  const auto first = [this]() REQUIRES(mu_) {
    return std::find_if(turns_.begin(), turns_.end(), [](const Turn& turn) { return !turn.over; });
  };
  while (&*first() != &own) clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
}

void Publisher::Record(const PublishReport& report, Turn& own) {
  LogInfo("publish_ended", "version={} digest={} replicas={} committed={} wire_bytes={} packed_ms={:.1f}",
          report.version.ToString(), report.version.digest.ToHex(), report.replicas.size(),
          std::count_if(report.replicas.begin(), report.replicas.end(), [](const auto& r) { return r.status.ok(); }),
          report.wire_bytes, report.packed_ms);
  MutexLock lock(mu_);
  if (!report.version.digest.IsZero()) status_.newest = report.version;
  status_.replicas = report.replicas;
  PublishReport row = report;
  row.at = clock_.WallNow();
  history_.Add(std::move(row));
  NoteInRoster(report.replicas, report.version);
  // A fleet without replicas yet: who joins gets this version, if its bytes are kept.
  if (catch_up_ && report.replicas.empty() && driver_->CanSendAgain(report.version)) roster_.Commit(report.version);
  EndTurn(own);
}

void Publisher::NoteInRoster(const std::vector<ReplicaReport>& replicas, const WeightVersion& version) {
  for (const ReplicaReport& replica : replicas) {
    const bool committed = replica.status.ok() && replica.state == ReplicaState::kCommitted;
    if (committed) roster_.Commit(version);
    const WeightVersion live = replica.state == ReplicaState::kRolledBack ? replica.flip.version
                               : committed                                ? version
                                                                          : WeightVersion{};
    roster_.Ended(replica.address, replica.status, replica.state, replica.phase, live, clock_.Now());
  }
}

void Publisher::EndTurn(Turn& own) {
  own.over = true;
  NoteWhatCanBeSent();
  status_.publishing = std::any_of(turns_.begin(), turns_.end(), [](const Turn& turn) { return !turn.over; });
  Changed();
}

void Publisher::NoteWhatCanBeSent() {
  sends_again_ = catch_up_ && roster_.committed() && driver_->CanSendAgain(*roster_.committed());
}

void Publisher::Changed() {
  ++change_;
  changed_.NotifyAll();
}

Result<FleetWelcome> Publisher::Join(const FleetHeartbeat& heartbeat) {
  if (!catch_up_ || !leads_) return Status::Unimplemented("no_fleet", "this publisher takes no replicas in");
  MutexLock lock(mu_);
  const TimePoint now = clock_.Now();
  RETURN_IF_ERROR(roster_.Join(heartbeat, now));
  if (!status_.publishing) NoteWhatCanBeSent();  // a rank of a group may have gone since
  Changed();
  return roster_.WelcomeOf(heartbeat.address, sends_again_, now);
}

void Publisher::Leave(const std::string& address, InstanceId instance) {
  MutexLock lock(mu_);
  roster_.Leave(address, instance);
  Changed();
}

void Publisher::KeepAttending(const std::stop_token& stop) {
  const std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  while (!stop.stop_requested()) {
    Turn* const own = NextAttendance();
    if (own == nullptr) continue;
    const std::stop_callback end(
        stop, [&] { own->cancel.Request(Status::Cancelled("cancelled", "the publisher goes away")); });
    driver_->Attend(own->cancel);
    MutexLock lock(mu_);
    EndTurn(*own);
  }
}

Publisher::Turn* Publisher::NextAttendance() {
  MutexLock lock(mu_);
  if (!status_.publishing && driver_->CanAttend()) return &TakeTurn(/*gives_way=*/true);
  clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
  return nullptr;
}

void Publisher::KeepCaughtUp(const std::stop_token& stop) {
  const std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  while (!stop.stop_requested()) {
    Turn* own = nullptr;
    const std::optional<PublishJob> job = NextCatchUp(&own);
    if (!job) continue;
    const std::stop_callback end(
        stop, [&] { own->cancel.Request(Status::Cancelled("cancelled", "the publisher goes away")); });
    PendingPublish pending(clock_);
    const PublishReport report = driver_->Run(*job, pending, Deadline::After(clock_, deadline_), own->cancel);
    MutexLock lock(mu_);
    // The digest is known once the version has been sent for the first time.
    NoteInRoster(report.replicas, report.version.digest.IsZero() ? *job->again : report.version);
    if (report.AllCommitted() && status_.newest.digest.IsZero()) status_.newest = report.version;
    EndTurn(*own);
  }
}

std::optional<PublishJob> Publisher::NextCatchUp(Turn** turn) {
  MutexLock lock(mu_);
  const TimePoint now = clock_.Now();
  const bool may = !status_.publishing && sends_again_;
  PublishJob job{.request = {}, .newest = status_.newest, .replicas = {}, .again = roster_.committed()};
  if (may) job.replicas = roster_.Due(now);
  if (job.replicas.empty()) {
    const TimePoint next = may ? roster_.NextDue(now).value_or(TimePoint::max()) : TimePoint::max();
    clock_.WaitUntil(changed_, mu_, std::min(next, now + kLookAgain));
    return std::nullopt;
  }
  *turn = &TakeTurn(/*gives_way=*/true);
  roster_.Began(job.replicas);
  return job;
}

Result<FleetRollback> Publisher::RollBack(std::optional<std::uint64_t> to, Deadline deadline) {
  Turn* own = nullptr;
  std::vector<std::string> replicas;
  {
    MutexLock lock(mu_);
    if (Busy()) return Status::FailedPrecondition("publish_in_progress", "roll back once it has ended");
    Supersede();
    own = &TakeTurn(/*gives_way=*/false);
    AwaitTurn(*own);
    replicas = roster_.Targets(clock_.Now());
  }
  Result<FleetRollback> rollback = driver_->RollBack(replicas, to, deadline, own->cancel);
  MutexLock lock(mu_);
  if (rollback.ok()) {
    for (const ReplicaReport& replica : rollback->replicas) {
      const WeightVersion live = replica.status.ok() ? rollback->version : WeightVersion{};
      roster_.Ended(replica.address, replica.status, replica.state, replica.phase, live, clock_.Now());
    }
    roster_.Commit(rollback->version);
  }
  EndTurn(*own);
  return rollback;
}

PublisherStatus Publisher::status() const {
  MutexLock lock(mu_);
  PublisherStatus status = status_;
  status.publishing = Busy();
  status.committed = roster_.committed();
  status.sends_again = sends_again_;
  status.fleet = roster_.Rows(clock_.Now());
  return status;
}

std::vector<PublishReport> Publisher::History() const {
  MutexLock lock(mu_);
  return history_.Reports();
}

Result<std::uint64_t> Publisher::WaitForChange(std::uint64_t seen, Deadline deadline) const {
  MutexLock lock(mu_);
  while (change_ == seen) {
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", "nothing has changed");
    clock_.WaitUntil(changed_, mu_, deadline.point());
  }
  return change_;
}

}  // namespace

bool PublishReport::AllCommitted() const {
  return std::all_of(replicas.begin(), replicas.end(), [](const ReplicaReport& r) { return r.status.ok(); });
}

Result<std::unique_ptr<WeightPublisher>> WeightPublisher::Create(WeightPublisherOptions options, TensorSource source) {
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(CheckLayout(source.layout()));
  RETURN_IF_ERROR(CheckDevice(options, source));
  for (auto* const dialers : {&options.transports, &options.fallbacks}) {
    *dialers = DialersFor(SendsFrom(options, source), *dialers);
  }
  const bool grouped = options.group.world_size > 1;
  if (grouped && source.layout().ranks.size() != 1) {
    return BadOptions(fmt::format("a process of a group has one trainer rank, not {}", source.layout().ranks.size()));
  }
  auto publisher = std::make_unique<Publisher>(options, std::move(source));
  if (grouped && options.group.rank > 0) {
    publisher->Drive(std::make_unique<MemberDriver>(std::move(options), publisher->source()));
  } else {
    ASSIGN_OR_RETURN(auto driver, ReplicaDriver::Create(std::move(options), publisher->source()));
    publisher->Drive(std::move(driver));
  }
  return std::unique_ptr<WeightPublisher>(std::move(publisher));
}

}  // namespace bascule
