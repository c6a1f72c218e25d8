#include "trainer_side/replica_driver.h"

#include <algorithm>
#include <utility>

#include "base/worker.h"
#include "device/host/host_memory.h"
#include "trainer_side/group_report.h"

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
                               .team = leader_.get(),
                               .connect_timeout = options_.connect_timeout,
                               .clock = options_.clock},
             plans_),
         .sent = {}});
  }
}

// Members that are still there hear what was said last.
ReplicaDriver::~ReplicaDriver() {
  if (leader_ != nullptr) leader_->Disband();
}

PublishReport ReplicaDriver::Run(const PublishRequest& request, const WeightVersion& newest, PendingPublish& pending,
                                 Deadline deadline, const std::stop_token& stop) {
  for (Replica& replica : replicas_) replica.sent = {};
  GatherGroup(request, deadline, stop);
  OpenReplicas(deadline, stop);
  RefuseOtherTensors();
  VersionOffer offer;
  if (Result<VersionOffer> chosen = ChooseVersion(request, newest); chosen.ok()) {
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
  if (leader_ != nullptr) leader_->Conclude(OutcomeOf(report));
  return report;
}

void ReplicaDriver::GatherGroup(const PublishRequest& request, Deadline deadline, const std::stop_token& stop) {
  if (leader_ == nullptr) return;
  Result<GroupLeader::Assembly> assembly = leader_->Gather(request.number, deadline, stop);
  if (!assembly.ok()) {
    for (Replica& replica : replicas_) {
      replica.connection->Enter(SendPhase::kGroup);
      replica.sent.phase = SendPhase::kGroup;
    }
    return FailAll(assembly.status());
  }
  group_layout_ = std::move(assembly->layout);
  if (!assembly->changed) return;
  // The routes of members that are new to it cannot be those that it has.
  for (Replica& replica : replicas_) replica.connection->Close();
}

void ReplicaDriver::OpenReplicas(Deadline deadline, const std::stop_token& stop) {
  ForEachStanding([&](Replica& replica) {
    const Status opened = replica.connection->Open(layout(), deadline, stop);
    replica.sent.status = replica.connection->Failure(opened);
    replica.sent.phase = replica.connection->phase();
  });
}

void ReplicaDriver::RefuseOtherTensors() {
  const std::vector<Replica*> standing = Standing();
  for (Replica* replica : standing) {
    const ReplicaConnection& first = *standing.front()->connection;
    if (replica->connection->plan().tensors == first.plan().tensors) continue;
    replica->sent.status = replica->connection->Failure(Status::FailedPrecondition(
        "replicas_differ", fmt::format("takes other tensors or types than replica {}", first.options().address)));
  }
}

Result<VersionOffer> ReplicaDriver::ChooseVersion(const PublishRequest& request, const WeightVersion& newest) {
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
  std::uint64_t seen = newest.run == offer.run ? newest.number : 0;
  for (const Replica* replica : Standing()) {
    const ReplicaConnection& connection = *replica->connection;
    if (connection.live().run == offer.run) seen = std::max(seen, connection.highest_number());
  }
  offer.number = request.number.value_or(seen + 1);
  return offer;
}

Status ReplicaDriver::TakeSnapshot() {
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

void ReplicaDriver::SendToReplicas(const VersionOffer& offer, PendingPublish& pending, Deadline deadline,
                                   const std::stop_token& stop) {
  const int standing = static_cast<int>(Standing().size());
  pending.ExpectSealed(standing);
  if (standing == 0) return;
  const WeightSource* source = &source_;
  if (options_.snapshot == Snapshot::kHost) source = snapshot_.get();
  std::optional<RankSource> as_rank;
  if (leader_ != nullptr) {
    as_rank.emplace(*source, options_.group.rank, options_.group.world_size);
    source = &*as_rank;
  }
  std::atomic<int> unsealed = standing;
  const auto on_sealed = [&] {
    pending.CountSealed();
    if (--unsealed == 0 && leader_ != nullptr) leader_->NotePacked();
  };
  ForEachStanding([&](Replica& replica) {
    VersionOffer own = offer;
    own.new_run = offer.new_run && replica.connection->live().run != offer.run;
    PublishSession session(*replica.connection, *source, std::move(own), deadline, stop, on_sealed);
    replica.sent = session.Run();
  });
}

PublishReport ReplicaDriver::Report(const VersionOffer& offer, const PendingPublish& pending) const {
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

void ReplicaDriver::FailAll(const Status& why) {
  for (Replica* replica : Standing()) replica->sent.status = replica->connection->Failure(why);
}

std::vector<ReplicaDriver::Replica*> ReplicaDriver::Standing() {
  std::vector<Replica*> standing;
  for (Replica& replica : replicas_) {
    if (!replica.Failed()) standing.push_back(&replica);
  }
  return standing;
}

template <typename Act>
void ReplicaDriver::ForEachStanding(const Act& act) {
  const std::vector<Replica*> standing = Standing();
  std::vector<Worker> workers;
  for (Replica* replica : standing) {
    workers.emplace_back("publish-replica", [&act, replica](std::stop_token) { act(*replica); });
  }
  for (Worker& worker : workers) worker.Join();
}

}  // namespace bascule
