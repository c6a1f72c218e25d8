#include "trainer_side/member_driver.h"

#include <utility>

#include "bridge/send/send_phase.h"
#include "trainer_side/group_report.h"
#include "trainer_side/weight_guard.h"

namespace bascule {

MemberDriver::MemberDriver(WeightPublisherOptions options, const TensorSource& source)
    : options_(std::move(options)), source_(source) {
  if (options_.max_bytes_per_second > 0) pacer_.emplace(options_.max_bytes_per_second, *options_.clock);
  member_.emplace(GroupMemberOptions{.leader = options_.group.leader,
                                     .group = options_.group.name,
                                     .rank = options_.group.rank,
                                     .world_size = options_.group.world_size,
                                     .control = options_.control,
                                     .transports = options_.transports,
                                     .pacer = pacer_ ? &*pacer_ : nullptr,
                                     .connect_timeout = options_.connect_timeout,
                                     .clock = options_.clock},
                  source_.layout());
}

PublishReport MemberDriver::Run(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                                const Cancellation& cancel) {
  has_version_ = options_.snapshot == Snapshot::kTensorsStay;
  const RoundHooks hooks{.source = [&](const Plan& plan) { return SourceOf(plan, pending, deadline); },
                         .packed =
                             [&] {
                               KeepUnasked(deadline);
                               pending.SetPacked();
                             },
                         .sends_again = KeepsVersion()};
  const Result<GroupOutcome> outcome = member_->TakePart(job.request.number, hooks, deadline, cancel.token());
  PublishReport report;
  if (outcome.ok()) {
    report = ReportOf(*outcome);
  } else {
    report.replicas.push_back({.address = options_.group.leader,
                               .status = StopSignal(cancel).Explain(outcome.status()),
                               .phase = std::string(SendPhaseName(SendPhase::kGroup))});
  }
  report.packed_ms = pending.packed_ms();
  return report;
}

void MemberDriver::KeepUnasked(Deadline deadline) {
  if (!KeepsVersion() || has_version_ || snapshot_ == nullptr) return;
  has_version_ = snapshot_->Copy(deadline).ok();
}

void MemberDriver::Attend(const Cancellation& cancel) {
  const RoundHooks hooks{
      .source = [&](const Plan& plan) { return SourceAgain(plan); }, .packed = [] {}, .sends_again = has_version_};
  static_cast<void>(member_->Attend(hooks, cancel.token()));
}

Result<const WeightSource*> MemberDriver::SourceAgain(const Plan& plan) {
  const WeightSource* source = &source_;
  if (TakesCopy(options_.snapshot)) {
    if (snapshot_->wire() != WireOf(plan)) {
      return Status::FailedPrecondition("source_gone", "the version was kept in other tensors or types");
    }
    source = snapshot_.get();
  }
  as_rank_.emplace(*source, options_.group.rank, options_.group.world_size);
  return &*as_rank_;
}

Result<const WeightSource*> MemberDriver::SourceOf(const Plan& plan, PendingPublish& pending, Deadline deadline) {
  if (options_.guard) RETURN_IF_ERROR(CheckWeights(source_, *options_.guard));
  const WeightSource* source = &source_;
  if (TakesCopy(options_.snapshot)) {
    if (const std::vector<TensorSpec> wire = WireOf(plan); snapshot_ == nullptr || snapshot_->wire() != wire) {
      snapshot_.reset();  // both at once might not fit
      ASSIGN_OR_RETURN(
          snapshot_,
          WeightSnapshot::Create(source_, wire, MemoryForSnapshot(source_, options_.snapshot == Snapshot::kDevice)));
    }
    RETURN_IF_ERROR(snapshot_->Copy(deadline));
    has_version_ = true;
    pending.SetPacked();
    source = snapshot_.get();
  }
  as_rank_.emplace(*source, options_.group.rank, options_.group.world_size);
  return &*as_rank_;
}

}  // namespace bascule
