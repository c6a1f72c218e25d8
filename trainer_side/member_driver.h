// Takes part in the publishes that trainer rank 0 leads: sends what this process holds, and hears what became of it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bridge/group/group_member.h"
#include "bridge/group/rank_source.h"
#include "bridge/send/send_pacer.h"
#include "trainer_side/publish_driver.h"
#include "trainer_side/snapshot.h"

namespace bascule {

class MemberDriver final : public PublishDriver {
 public:
  // Borrows `source`, which has one rank.
  MemberDriver(WeightPublisherOptions options, const TensorSource& source);

  // The number is the leader's choice; one that is asked for here is compared with it.
  PublishReport Run(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                    const Cancellation& cancel) override;
  bool CanAttend() const override { return KeepsVersion() && member_->joined(); }
  void Attend(const Cancellation& cancel) override;

 private:
  // Whoever comes late gets all of a version, also of one that is sent in part.
  std::vector<TensorSpec> WireOf(const Plan& plan) const {
    return options_.catch_up ? plan.tensors : SentTensors(plan);
  }
  bool KeepsVersion() const { return options_.catch_up && options_.snapshot != Snapshot::kNone; }
  // What sessions read: the tensors, or a copy that is made now.
  Result<const WeightSource*> SourceOf(const Plan& plan, PendingPublish& pending, Deadline deadline);
  // Likewise, of the last round's version.
  Result<const WeightSource*> SourceAgain(const Plan& plan);
  // Nobody took the version: it is kept in the types of the one before.
  void KeepUnasked(Deadline deadline);

  const WeightPublisherOptions options_;
  const TensorSource& source_;
  std::optional<SendPacer> pacer_;
  std::unique_ptr<WeightSnapshot> snapshot_;
  std::optional<RankSource> as_rank_;
  bool has_version_ = false;  // of the last round
  std::optional<GroupMember> member_;
};

}  // namespace bascule
