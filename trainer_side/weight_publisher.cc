#include "trainer_side/weight_publisher.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/send/plan_cache.h"
#include "bridge/send/publish_session.h"
#include "bridge/send/replica_connection.h"
#include "bridge/send/send_pacer.h"
#include "device/host/host_memory.h"
#include "trainer_side/pending_publish.h"
#include "trainer_side/snapshot.h"

namespace bascule {
namespace {

constexpr std::size_t kHistoryEntries = 10'000;
constexpr std::int64_t kMinBucketBytes = 4096;
constexpr std::int64_t kBucketAlignment = 64;

Status BadOptions(const std::string& why) { return Status::InvalidArgument("bad_options", why); }

Status CheckOptions(const WeightPublisherOptions& options) {
  if (options.replicas.empty()) return Status::InvalidArgument("no_replica", "the publisher has no replica to send to");
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
  if (options.max_bytes_per_second < 0) return BadOptions("max_bytes_per_second is negative");
  if (options.connect_timeout <= Duration::zero() || options.deadline <= Duration::zero()) {
    return BadOptions("connect_timeout and deadline are positive");
  }
  return OkStatus();
}

class Publisher final : public WeightPublisher {
 public:
  Publisher(WeightPublisherOptions options, TensorSource source);
  ~Publisher() override;

  Result<std::shared_ptr<PublishHandle>> Publish(PublishRequest request) override EXCLUDES(mu_);
  void Cancel() override EXCLUDES(mu_);
  PublisherStatus status() const override EXCLUDES(mu_);
  std::vector<PublishReport> History() const override EXCLUDES(mu_);
  Result<std::uint64_t> WaitForChange(std::uint64_t seen, Deadline deadline) const override EXCLUDES(mu_);

 private:
  // A replica and how the publish under way fares there. Touched by one thread at a time.
  struct Replica {
    std::unique_ptr<ReplicaConnection> connection;
    SendReport sent;
    bool Failed() const { return !sent.status.ok(); }
  };

  // The phases of one publish, on its own thread.
  void RunPublish(const PublishRequest& request, PendingPublish& pending, const std::stop_token& stop);
  void OpenReplicas(Deadline deadline, const std::stop_token& stop);
  // Every replica of a publish takes the same tensors in the same types: a version is one set of bytes.
  void RefuseOtherTensors();
  Result<VersionOffer> ChooseVersion(const PublishRequest& request);
  Status TakeSnapshot();
  void SendToReplicas(const VersionOffer& offer, PendingPublish& pending, Deadline deadline,
                      const std::stop_token& stop);
  PublishReport Report(const VersionOffer& offer, const PendingPublish& pending) const;
  void Record(const PublishReport& report) EXCLUDES(mu_);

  void FailAll(const Status& why);
  std::vector<Replica*> Standing();  // those that have not failed
  template <typename Act>
  void ForEachStanding(const Act& act);

  const WeightPublisherOptions options_;
  const TensorSource source_;
  std::optional<SendPacer> pacer_;
  PlanCache plans_;
  std::vector<Replica> replicas_;           // of the publish thread
  std::unique_ptr<HostSnapshot> snapshot_;  // of the publish thread
  std::uint64_t term_ = 1;                  // of the publish thread; each takeover raises it

  mutable Mutex mu_;  // Guards what others ask for; never held across a wait but for changes.
  mutable CondVar changed_;
  PublisherStatus status_ GUARDED_BY(mu_);
  std::deque<PublishReport> history_ GUARDED_BY(mu_);
  std::uint64_t change_ GUARDED_BY(mu_) = 1;
  Worker publish_ GUARDED_BY(mu_);
};

Publisher::Publisher(WeightPublisherOptions options, TensorSource source)
    : options_(std::move(options)), source_(std::move(source)) {
  if (options_.max_bytes_per_second > 0) pacer_.emplace(options_.max_bytes_per_second, *options_.clock);
  const InstanceId publisher = InstanceId::Mint();
  for (const std::string& address : options_.replicas) {
    replicas_.push_back(
        {.connection = std::make_unique<ReplicaConnection>(
             ConnectionOptions{.address = address,
                               .control = options_.control,
                               .transports = options_.transports,
                               .publisher = publisher,
                               .model = options_.model,
                               .plan = {.bucket_bytes = options_.bucket_bytes, .ignore = options_.ignore},
                               .credits = options_.credits,
                               .pacer = pacer_ ? &*pacer_ : nullptr,
                               .connect_timeout = options_.connect_timeout,
                               .clock = options_.clock},
             plans_),
         .sent = {}});
  }
}

Publisher::~Publisher() {
  Cancel();
  Worker running;
  {
    MutexLock lock(mu_);
    running = std::move(publish_);
  }
  running.Join();
}

Result<std::shared_ptr<PublishHandle>> Publisher::Publish(PublishRequest request) {
  MutexLock lock(mu_);
  if (status_.publishing) return Status::FailedPrecondition("publish_in_progress", "the one before has not ended");
  status_.publishing = true;
  ++change_;
  changed_.NotifyAll();
  // Shared by the caller and the publish thread, either of which may be the last.
  auto pending = std::make_shared<PendingPublish>(*options_.clock);
  publish_ = Worker("publish", [this, request = std::move(request), pending](const std::stop_token& stop) {
    RunPublish(request, *pending, stop);
  });
  return std::shared_ptr<PublishHandle>(std::move(pending));
}

void Publisher::Cancel() {
  MutexLock lock(mu_);
  publish_.RequestStop();
}

void Publisher::RunPublish(const PublishRequest& request, PendingPublish& pending, const std::stop_token& stop) {
  const Deadline deadline = Deadline::After(*options_.clock, options_.deadline);
  OpenReplicas(deadline, stop);
  RefuseOtherTensors();
  VersionOffer offer;
  if (Result<VersionOffer> chosen = ChooseVersion(request); chosen.ok()) {
    offer = std::move(*chosen);
  } else {
    FailAll(chosen.status());
  }
  if (options_.snapshot == Snapshot::kHost) {
    if (const Status taken = TakeSnapshot(); !taken.ok()) FailAll(taken);
    pending.SetPacked();
  }
  SendToReplicas(offer, pending, deadline, stop);
  PublishReport report = Report(offer, pending);
  Record(report);
  pending.Finish(std::move(report));
}

void Publisher::OpenReplicas(Deadline deadline, const std::stop_token& stop) {
  for (Replica& replica : replicas_) replica.sent = {};
  ForEachStanding([&](Replica& replica) {
    const Status opened = replica.connection->Open(source_.layout(), deadline, stop);
    replica.sent.status = replica.connection->Failure(opened);
    replica.sent.phase = replica.connection->phase();
  });
}

void Publisher::RefuseOtherTensors() {
  const std::vector<Replica*> standing = Standing();
  for (Replica* replica : standing) {
    const ReplicaConnection& first = *standing.front()->connection;
    if (replica->connection->plan().tensors == first.plan().tensors) continue;
    replica->sent.status = replica->connection->Failure(Status::FailedPrecondition(
        "replicas_differ", fmt::format("takes other tensors or types than replica {}", first.options().address)));
  }
}

Result<VersionOffer> Publisher::ChooseVersion(const PublishRequest& request) {
  VersionOffer offer{.run = options_.run,
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
  MutexLock lock(mu_);
  std::uint64_t seen = status_.newest.run == offer.run ? status_.newest.number : 0;
  for (const Replica* replica : Standing()) {
    const ReplicaConnection& connection = *replica->connection;
    if (connection.live().run == offer.run) seen = std::max(seen, connection.highest_number());
  }
  offer.number = request.number.value_or(seen + 1);
  return offer;
}

Status Publisher::TakeSnapshot() {
  const std::vector<Replica*> standing = Standing();
  if (standing.empty()) return OkStatus();
  const std::vector<TensorSpec>& wire = standing.front()->connection->plan().tensors;
  if (snapshot_ == nullptr || snapshot_->wire() != wire) {
    snapshot_.reset();  // both at once might not fit
    ASSIGN_OR_RETURN(snapshot_, HostSnapshot::Create(source_, wire, HostMemory()));
  }
  snapshot_->Copy();
  return OkStatus();
}

void Publisher::SendToReplicas(const VersionOffer& offer, PendingPublish& pending, Deadline deadline,
                               const std::stop_token& stop) {
  const int standing = static_cast<int>(Standing().size());
  pending.ExpectSealed(standing);
  if (standing == 0) return;
  const WeightSource* source = &source_;
  if (options_.snapshot == Snapshot::kHost) source = snapshot_.get();
  ForEachStanding([&](Replica& replica) {
    VersionOffer own = offer;
    own.new_run = offer.new_run && replica.connection->live().run != offer.run;
    PublishSession session(*replica.connection, *source, std::move(own), deadline, stop,
                           [&] { pending.CountSealed(); });
    replica.sent = session.Run();
  });
}

PublishReport Publisher::Report(const VersionOffer& offer, const PendingPublish& pending) const {
  PublishReport report;
  report.version = {.run = offer.run, .number = offer.number, .digest = {}};
  report.packed_ms = pending.packed_ms();
  for (const Replica& replica : replicas_) {
    const SendReport& sent = replica.sent;
    if (!sent.version.digest.IsZero()) report.version.digest = sent.version.digest;
    report.bytes = std::max(report.bytes, sent.bytes);
    report.wire_bytes += sent.wire_bytes;
    report.replicas.push_back({.address = replica.connection->options().address,
                               .status = sent.status,
                               .phase = sent.status.ok() ? "" : std::string(SendPhaseName(sent.phase)),
                               .transport = sent.transport,
                               .stage_ms = sent.stage_ms,
                               .verify_ms = sent.verify_ms,
                               .flip = sent.flip});
  }
  return report;
}

void Publisher::Record(const PublishReport& report) {
  LogInfo("publish_ended", "version={} digest={} replicas={} committed={} wire_bytes={} packed_ms={:.1f}",
          report.version.ToString(), report.version.digest.ToHex(), report.replicas.size(),
          std::count_if(report.replicas.begin(), report.replicas.end(), [](const auto& r) { return r.status.ok(); }),
          report.wire_bytes, report.packed_ms);
  MutexLock lock(mu_);
  if (!report.version.digest.IsZero()) status_.newest = report.version;
  status_.replicas = report.replicas;
  status_.publishing = false;
  history_.push_back(report);
  if (history_.size() > kHistoryEntries) history_.pop_front();
  ++change_;
  changed_.NotifyAll();
}

void Publisher::FailAll(const Status& why) {
  for (Replica* replica : Standing()) replica->sent.status = replica->connection->Failure(why);
}

std::vector<Publisher::Replica*> Publisher::Standing() {
  std::vector<Replica*> standing;
  for (Replica& replica : replicas_) {
    if (!replica.Failed()) standing.push_back(&replica);
  }
  return standing;
}

template <typename Act>
void Publisher::ForEachStanding(const Act& act) {
  const std::vector<Replica*> standing = Standing();
  std::vector<Worker> workers;
  for (Replica* replica : standing) {
    workers.emplace_back("publish-replica", [&act, replica](std::stop_token) { act(*replica); });
  }
  for (Worker& worker : workers) worker.Join();
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
    if (deadline.Passed(*options_.clock)) return Status::DeadlineExceeded("deadline", "nothing has changed");
    options_.clock->WaitUntil(changed_, mu_, deadline.point());
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
  return std::unique_ptr<WeightPublisher>(std::make_unique<Publisher>(std::move(options), std::move(source)));
}

}  // namespace bascule
