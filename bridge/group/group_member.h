// A process that is trainer rank 1 or up: finds its leader, shows what it holds, and takes part in the rounds that the
// leader begins, each of which is one publish. Between rounds it keeps its place and its routes, and may attend: then
// it sends what it had in the last round again, to replicas that come late.
//
// Thread-safety: confined to one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/group/member_session.h"
#include "bridge/send/control_inbox.h"
#include "bridge/send/plan_cache.h"
#include "bridge/send/weight_source.h"
#include "bridge/session/control.h"

namespace bascule {

struct GroupMemberOptions {
  std::string leader;  // address
  std::string group;   // the job's name, as the leader has it
  int rank = 1;
  int world_size = 2;
  ControlDialer* control = nullptr;                    // borrowed
  std::vector<TransportDialer*> transports;            // borrowed
  SendPacer* pacer = nullptr;                          // borrowed; null: as fast as it goes
  Duration connect_timeout = std::chrono::seconds(5);  // of each try to reach the leader, and of each route
  Clock* clock = &Clock::Real();
};

// What the owner of the tensors does in a round.
struct RoundHooks {
  // What sessions of this round read, as this rank of the group's layout. Called once, when it is known by which plan:
  // what is sent, and in which types.
  std::function<Result<const WeightSource*>(const Plan& plan)> source;
  // Nothing is read any more in this round: the tensors may change.
  std::function<void()> packed;
  // In a round: this rank attends once it is over. Attending: the bytes of the last round are there still.
  bool sends_again = false;
};

class GroupMember {
 public:
  // `part` has one rank: what this process holds. It passes CheckLayout.
  GroupMember(GroupMemberOptions options, Layout part);
  ~GroupMember();  // leaves

  // The next round, whatever becomes of it: the leader's account of it. Finds the leader first if need be, again and
  // again while nobody answers. A round that could not go on without this rank ends at the leader with a name.
  //
  // DeadlineExceeded "deadline"; Cancelled "cancelled"
  // Unavailable "peer_unreachable" | "peer_lost" | "rank_taken"  the leader
  // DataLoss "bad_message"; InvalidArgument "unexpected_message"
  // what the leader says when it refuses this process (GroupLeader::Serve)
  Result<GroupOutcome> TakePart(std::optional<std::uint64_t> number, const RoundHooks& hooks, Deadline deadline,
                                const std::stop_token& stop);

  // This process is a member, and its leader is there.
  bool joined() const { return inbox_ != nullptr && inbox_->Stands(); }
  // Between rounds, until `stop`: sends the version of the last round again, when the leader says so. What is under way
  // when it stops fails for the leader ("superseded").
  //
  // Unavailable "peer_lost"  the leader; DataLoss "bad_message"; InvalidArgument "unexpected_message"
  Status Attend(const RoundHooks& hooks, const std::stop_token& stop);

 private:
  Status Join(Deadline deadline, const std::stop_token& stop);
  Status TryToJoin(Deadline deadline, const std::stop_token& stop);
  Result<GroupOutcome> FollowLeader(const RoundHooks& hooks, Deadline deadline, const std::stop_token& stop);
  // Tells the leader why, closes everything.
  void Leave(const Status& why);

  Status AnswerLeader(const RoundHooks& hooks, const std::stop_token& stop);
  Status OnMessage(SessionMessage message, const RoundHooks& hooks);
  Status OnLayout(GroupLayout message);
  Status OnPlan(const GroupPlan& question);
  Result<std::shared_ptr<const Plan>> MakeSamePlan(const GroupPlan& question);
  Status OnSend(const GroupSend& order, const RoundHooks& hooks);
  Status StartSession(const GroupSend& order, const RoundHooks& hooks);
  void EndSession(SessionId session);
  void EndSessions();
  void GiveWay();
  bool HasNews() const;
  Status TellNews();

  const GroupMemberOptions options_;
  const Layout part_;
  const InstanceId instance_ = InstanceId::Mint();
  PlanCache plans_;            // of each plan what this rank needs
  std::uint64_t round_ = 0;    // the next, or the one under way
  std::uint64_t sending_ = 0;  // the round whose version is sent: that one or, attending, the one before
  std::optional<Layout> layout_;
  std::map<std::uint64_t, MemberConnection> connections_;
  Deadline patience_;                                             // of the round
  std::unique_ptr<ControlInbox> inbox_;                           // null while not a member
  const WeightSource* source_ = nullptr;                          // of the round, once asked for
  std::map<SessionId, std::unique_ptr<MemberSession>> sessions_;  // of the round
};

}  // namespace bascule
