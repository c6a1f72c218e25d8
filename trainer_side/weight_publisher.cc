#include "trainer_side/weight_publisher.h"

#include <algorithm>
#include <deque>
#include <list>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/group/group_leader.h"
#include "trainer_side/member_driver.h"
#include "trainer_side/pending_publish.h"
#include "trainer_side/replica_driver.h"

namespace bascule {
namespace {

// A publish that others wait for ends by its own deadline, or soon after it is cancelled.
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr std::size_t kHistoryEntries = 10'000;
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

Status CheckOptions(const WeightPublisherOptions& options) {
  RETURN_IF_ERROR(CheckGroup(options.group));
  const bool leads = options.group.rank == 0;
  if (leads && options.replicas.empty())
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
  Publisher(Clock& clock, Duration deadline, TensorSource source)
      : clock_(clock), deadline_(deadline), source_(std::move(source)) {}
  ~Publisher() override;

  const TensorSource& source() const { return source_; }
  void Drive(std::unique_ptr<PublishDriver> driver) { driver_ = std::move(driver); }

  Result<std::shared_ptr<PublishHandle>> Publish(PublishRequest request) override EXCLUDES(mu_);
  void Cancel() override EXCLUDES(mu_);
  std::string group_address() const override { return driver_->group_address(); }
  PublisherStatus status() const override EXCLUDES(mu_);
  std::vector<PublishReport> History() const override EXCLUDES(mu_);
  Result<std::uint64_t> WaitForChange(std::uint64_t seen, Deadline deadline) const override EXCLUDES(mu_);

 private:
  // One publish that is under way or waits for the one that it supersedes.
  struct Publishing {
    Cancellation cancel;
    bool over = false;  // guarded by mu_
    Worker worker;      // last: joined before the rest goes
  };

  void Run(Publishing& own, const PublishRequest& request, PendingPublish& pending) EXCLUDES(mu_);
  // Waits for every publish that began before this one, and gives the newest version by then.
  WeightVersion AwaitTurn(const Publishing& own) EXCLUDES(mu_);
  void Record(const PublishReport& report, Publishing& own) EXCLUDES(mu_);

  Clock& clock_;
  const Duration deadline_;
  const TensorSource source_;
  std::unique_ptr<PublishDriver> driver_;  // of the publish thread

  mutable Mutex mu_;  // Guards what others ask for; never held across a wait but for changes.
  mutable CondVar changed_;
  PublisherStatus status_ GUARDED_BY(mu_);
  std::deque<PublishReport> history_ GUARDED_BY(mu_);
  std::uint64_t change_ GUARDED_BY(mu_) = 1;
  std::list<Publishing> publishing_ GUARDED_BY(mu_);  // oldest first; those that are over until the next begins
};

Publisher::~Publisher() {
  Cancel();
  std::list<Publishing> publishing;
  MutexLock lock(mu_);
  while (status_.publishing) clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
  publishing.swap(publishing_);
}

Result<std::shared_ptr<PublishHandle>> Publisher::Publish(PublishRequest request) {
  MutexLock lock(mu_);
  if (status_.publishing && !request.supersede) {
    return Status::FailedPrecondition("publish_in_progress", "the one before has not ended");
  }
  publishing_.remove_if([](const Publishing& one) { return one.over; });
  for (Publishing& older : publishing_) {
    older.cancel.Request(Status::Aborted("superseded", "the trainer publishes a newer version"));
  }
  status_.publishing = true;
  ++change_;
  changed_.NotifyAll();
  // Shared by the caller and the publish thread, either of which may be the last.
  auto pending = std::make_shared<PendingPublish>(clock_);
  Publishing& own = publishing_.emplace_back();
  own.worker = Worker("publish", [this, &own, request = std::move(request), pending](const std::stop_token&) {
    Run(own, request, *pending);
  });
  return std::shared_ptr<PublishHandle>(std::move(pending));
}

void Publisher::Run(Publishing& own, const PublishRequest& request, PendingPublish& pending) {
  const WeightVersion newest = AwaitTurn(own);
  PublishReport report = driver_->Run(request, newest, pending, Deadline::After(clock_, deadline_), own.cancel);
  Record(report, own);
  pending.Finish(std::move(report));
}

WeightVersion Publisher::AwaitTurn(const Publishing& own) {
  MutexLock lock(mu_);
  const auto first = [&] {
    return std::find_if(publishing_.begin(), publishing_.end(), [](const Publishing& one) { return !one.over; });
  };
  while (&*first() != &own) clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
  return status_.newest;
}

void Publisher::Cancel() {
  MutexLock lock(mu_);
  for (Publishing& one : publishing_) one.cancel.Request(Status::Cancelled("cancelled", "the publisher stopped it"));
}

void Publisher::Record(const PublishReport& report, Publishing& own) {
  LogInfo("publish_ended", "version={} digest={} replicas={} committed={} wire_bytes={} packed_ms={:.1f}",
          report.version.ToString(), report.version.digest.ToHex(), report.replicas.size(),
          std::count_if(report.replicas.begin(), report.replicas.end(), [](const auto& r) { return r.status.ok(); }),
          report.wire_bytes, report.packed_ms);
  MutexLock lock(mu_);
  own.over = true;
  if (!report.version.digest.IsZero()) status_.newest = report.version;
  status_.replicas = report.replicas;
  status_.publishing = std::any_of(publishing_.begin(), publishing_.end(), [](const auto& one) { return !one.over; });
  history_.push_back(report);
  if (history_.size() > kHistoryEntries) history_.pop_front();
  ++change_;
  changed_.NotifyAll();
}

PublisherStatus Publisher::status() const {
  MutexLock lock(mu_);
  return status_;
}

std::vector<PublishReport> Publisher::History() const {
  MutexLock lock(mu_);
  return {history_.begin(), history_.end()};
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
  const bool grouped = options.group.world_size > 1;
  if (grouped && source.layout().ranks.size() != 1) {
    return BadOptions(fmt::format("a process of a group has one trainer rank, not {}", source.layout().ranks.size()));
  }
  auto publisher = std::make_unique<Publisher>(*options.clock, options.deadline, std::move(source));
  if (grouped && options.group.rank > 0) {
    publisher->Drive(std::make_unique<MemberDriver>(std::move(options), publisher->source()));
  } else {
    ASSIGN_OR_RETURN(auto driver, ReplicaDriver::Create(std::move(options), publisher->source()));
    publisher->Drive(std::move(driver));
  }
  return std::unique_ptr<WeightPublisher>(std::move(publisher));
}

}  // namespace bascule
