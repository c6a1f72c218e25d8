// Trainer rank 0 of several processes: takes the members in, holds what each of them has, and has them send their share
// of every session that it leads. A publish is a round: the k-th on the leader is the k-th on every member.
//
// A member that goes away ends the round that it takes part in, by name, and may come back for the next. Members that
// are late for a round hear its end all the same.
//
// Thread-safety: thread-safe; one round at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/group/group_session.h"
#include "bridge/send/sender_team.h"
#include "bridge/session/control.h"

namespace bascule {

inline constexpr int kMaxGroupRanks = 1 << 16;

class GroupLeader final : public SenderTeam {
 public:
  // `part` has one rank, the leader's own, and passes CheckLayout. `world_size` counts the leader.
  GroupLeader(std::string group, int world_size, Layout part, Clock& clock);

  // The handler of whatever listens at the leader's address: one call serves one member, for as long as it is there.
  // A process that cannot be a member is told why:
  //
  // FailedPrecondition "wire_version" | "wrong_group"; InvalidArgument "bad_layout" | "unexpected_message"
  // Unavailable "rank_taken"  another process is that rank
  void Serve(ControlChannel& channel) EXCLUDES(mu_);

  struct Assembly {
    std::shared_ptr<const Layout> layout;  // of all ranks. Shared: connections outlive a change
    bool changed = false;                  // since the round before: connections to replicas have to be made anew
  };
  // Begins a round: waits until every member has entered it.
  //
  // DeadlineExceeded "group_incomplete"   names the trainer ranks that are not there, and those that are late
  // FailedPrecondition "version_differs"  a member wants to publish another number
  // InvalidArgument "bad_layout"          as MergeLayouts
  // Cancelled "cancelled"
  Result<Assembly> BeginRound(std::optional<std::uint64_t> number, Deadline deadline, const std::stop_token& stop)
      EXCLUDES(mu_);
  // Between rounds: every member still has what it had in the last one, and says that it would send it again.
  bool CanSendAgain() const EXCLUDES(mu_);
  // Has every member send the version of the last round again, as in a round, until Conclude.
  //
  // FailedPrecondition "source_gone"  a member has not kept it; Unavailable "rank_lost"
  // Aborted "superseded"              a member has entered the next round
  // DeadlineExceeded "group_incomplete"; Cancelled "cancelled"
  Status BeginAgain(Deadline deadline, const std::stop_token& stop) EXCLUDES(mu_);
  // All replicas of the round have sealed or failed: members may change their tensors.
  void NotePacked() EXCLUDES(mu_);
  // Ends the round; `outcome.round` is filled in.
  void Conclude(GroupOutcome outcome) EXCLUDES(mu_);

  // Lets every member go; whoever serves one returns. The leader is of no use any more.
  void Disband() EXCLUDES(mu_);

  Result<std::vector<TransportEndpoint>> Agree(const TeamConnection& connection,
                                               const std::vector<TransportEndpoint>& endpoints, Deadline deadline,
                                               const std::stop_token& stop) override EXCLUDES(mu_);
  std::unique_ptr<TeamSession> Begin(const Plan& plan, const TeamSessionTerms& terms,
                                     std::function<void()> on_change) override EXCLUDES(mu_);

 private:
  struct Member {
    ControlChannel* channel = nullptr;  // of the thread that serves it; null: nobody is this rank
    InstanceId instance;
    Layout part;
    GroupEnter entered;
  };
  // Who has still to agree to a plan, and what those who did can use.
  struct Agreement {
    std::map<int, std::optional<std::vector<TransportKind>>> answers;
    Status failure;
    bool Settled() const;
  };

  Result<int> Admit(ControlChannel& channel) EXCLUDES(mu_);
  Status CheckJoin(const GroupJoin& join) const;
  // False ends the membership.
  Status OnMessage(int rank, const SessionMessage& message) EXCLUDES(mu_);
  void OnPlanned(int rank, const GroupPlanned& planned) REQUIRES(mu_);
  void Dismiss(int rank, const Status& why) EXCLUDES(mu_);

  std::uint64_t Round() const EXCLUDES(mu_);
  Status SendTo(int rank, const SessionMessage& message) EXCLUDES(mu_);
  Status SendToLocked(int rank, const SessionMessage& message) REQUIRES(mu_);
  void SendToAll(const SessionMessage& message) REQUIRES(mu_);
  bool AllEntered() const REQUIRES(mu_);
  Result<bool> AllHaveItStill() const REQUIRES(mu_);
  Status CheckNumbers(std::optional<std::uint64_t> number) const REQUIRES(mu_);
  std::string WhoIsMissing() const REQUIRES(mu_);
  Result<Assembly> Assemble() REQUIRES(mu_);

  const std::string group_;
  const int world_size_;
  const Layout part_;
  Clock& clock_;
  const InstanceId instance_ = InstanceId::Mint();

  mutable Mutex mu_;  // Held while a message is handed over, which waits for nobody.
  CondVar changed_;
  std::vector<Member> members_ GUARDED_BY(mu_);           // by trainer rank; that of the leader is unused
  std::shared_ptr<const Layout> layout_ GUARDED_BY(mu_);  // of all; null since somebody joined
  std::uint64_t round_ GUARDED_BY(mu_) = 0;
  bool gathering_ GUARDED_BY(mu_) = false;
  bool disbanded_ GUARDED_BY(mu_) = false;
  std::map<std::uint64_t, Agreement> agreements_ GUARDED_BY(mu_);  // by connection
  std::map<SessionId, GroupSession*> sessions_ GUARDED_BY(mu_);    // while they last
};

}  // namespace bascule
