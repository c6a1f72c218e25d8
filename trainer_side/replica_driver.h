// Leads a publish: connects to the replicas, chooses the number, runs a session to each. In a group it has first the
// other ranks come together, and tells them in the end what became of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/group/group_leader.h"
#include "bridge/group/rank_source.h"
#include "bridge/send/plan_cache.h"
#include "bridge/send/publish_session.h"
#include "bridge/send/send_pacer.h"
#include "trainer_side/gather/gathering.h"
#include "trainer_side/policy_run.h"
#include "trainer_side/publish_driver.h"
#include "trainer_side/replica.h"
#include "trainer_side/snapshot.h"

namespace bascule {

class ReplicaDriver final : public PublishDriver {
 public:
  // Borrows `source`. Of a group: listens.
  //
  // as ControlHost::Listen
  static Result<std::unique_ptr<ReplicaDriver>> Create(WeightPublisherOptions options, const TensorSource& source);
  ~ReplicaDriver() override;

  PublishReport Run(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                    const Cancellation& cancel) override;
  bool CanSendAgain(const WeightVersion& version) const override;
  Result<FleetRollback> RollBack(const std::vector<std::string>& replicas, std::optional<std::uint64_t> to,
                                 Deadline deadline, const Cancellation& cancel) override;
  std::string group_address() const override { return listener_ == nullptr ? "" : listener_->address(); }

 private:
  ReplicaDriver(WeightPublisherOptions options, const TensorSource& source);

  // Those with these addresses, in this order; connections that stand are used again.
  void TakeReplicas(const std::vector<std::string>& addresses);
  PublishReport SendAgain(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                          const Cancellation& cancel);
  void BeginAgain(Deadline deadline, const Cancellation& cancel);
  void FailRound(const Status& why);
  void NotePacked(const WeightVersion& version);

  // The phases of one publish.
  void BeginRound(const PublishRequest& request, Deadline deadline, const Cancellation& cancel);
  void OpenReplicas(Deadline deadline, const Cancellation& cancel);
  Status OpenReplica(Replica& replica, Deadline deadline, const std::stop_token& stop);
  // Notes what replicas say of the last decision, and tells those that have missed it.
  void SettleDecision();
  // Canaries that did not hear that they were refused hear it now.
  void SettleRefused(Deadline deadline, const Cancellation& cancel);
  // Every replica of a publish takes the same tensors in the same types: a version is one set of bytes.
  void RefuseOtherTensors();
  void OpenGathering(Deadline deadline, const std::stop_token& stop);
  Result<VersionOffer> ChooseVersion(const PublishJob& job);
  // Of a partial version, where the request names none.
  Result<WeightVersion> ChooseBase(const PublishJob& job, const VersionOffer& offer);
  // The run that this publisher's versions are in; empty where it has published none.
  std::string KnownRun(const WeightVersion& newest) const;
  Status CheckStanding();
  Status TakeSnapshot(Deadline deadline);
  // `again`: what was decided before, for those that lack it.
  void SendToReplicas(const VersionOffer& offer, bool known_run, const std::optional<WeightVersion>& again,
                      PendingPublish& pending, Deadline deadline, const Cancellation& cancel);
  void NoteDecision();
  void NoteTakenBack(const WeightVersion& to);
  // The kept version of all replicas that stand.
  Result<WeightVersion> KeptByAll(std::optional<std::uint64_t> to);
  PublishReport Report(const VersionOffer& offer, const PendingPublish& pending) const;

  std::unique_ptr<ReplicaConnection> MakeConnection(const std::string& address, bool gathers);
  PlanOptions PlanOptionsOf(bool gathers) const;
  // The source has every tensor that the replicas of this publish take, also outside its scope.
  bool HasAllTensors();
  Layout FullLayout() const { return PlainLayout(layout().tensors); }
  const Layout& layout() const { return group_layout_ == nullptr ? source_.layout() : *group_layout_; }
  void FailAll(const Status& why);
  std::vector<Replica*> Standing();  // those that have not failed

  const WeightPublisherOptions options_;
  const TensorSource& source_;
  const InstanceId publisher_ = InstanceId::Mint();
  std::vector<std::string> scope_;  // of the publish under way
  std::optional<SendPacer> pacer_;
  PlanCache plans_;
  std::unique_ptr<GroupLeader> leader_;         // null without a group
  std::shared_ptr<const Layout> group_layout_;  // of the last round; shared with the leader
  std::vector<Replica> replicas_;               // of the publish under way
  std::vector<Replica> idle_;                   // others whose connections stand
  std::optional<Gathering> gathering_;
  std::int64_t gather_window_bytes_ = 0;  // of the publish
  std::unique_ptr<WeightSnapshot> snapshot_;
  WeightVersion packed_;       // what the snapshot has, or the tensors that stay
  bool packed_whole_ = false;  // and all of it, as far as is known: who lacks its base can be brought it too
  std::map<std::string, RefusedVersion> refused_;    // by address: may be live there still
  std::optional<WeightVersion> committed_;           // by the fleet as a whole; a replica without it is out of rotation
  std::uint64_t term_ = 1;                           // each takeover raises it
  std::unique_ptr<ControlHost::Listener> listener_;  // last: its threads use the leader
};

}  // namespace bascule
