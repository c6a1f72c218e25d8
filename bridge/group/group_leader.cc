#include "bridge/group/group_leader.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "bridge/group/merge_layouts.h"

namespace bascule {
namespace {

constexpr Duration kJoinWait = std::chrono::seconds(30);
constexpr Duration kIdleWait = std::chrono::hours(1);
constexpr int kFirstMember = 1;

Status WrongGroup(std::string_view what, const std::string& theirs, const std::string& ours) {
  return Status::FailedPrecondition("wrong_group", fmt::format("{}: member={} leader={}", what, theirs, ours));
}

}  // namespace

GroupLeader::GroupLeader(std::string group, int world_size, Layout part, Clock& clock)
    : group_(std::move(group)), world_size_(world_size), part_(std::move(part)), clock_(clock) {
  MutexLock lock(mu_);
  members_.resize(static_cast<std::size_t>(world_size));
}

void GroupLeader::Serve(ControlChannel& channel) {
  const Result<int> rank = Admit(channel);
  if (!rank.ok()) {
    LogInfo("member_refused", "peer={} why=\"{}\"", channel.peer(), rank.status().ToString());
    static_cast<void>(channel.Send(Abort{SessionId{}, rank.status()}));  // one that is gone need not be told
    return;
  }
  Status why;
  while (why.ok()) {
    const Result<SessionMessage> message = channel.Receive(Deadline::After(clock_, kIdleWait));
    if (message.ok()) {
      why = OnMessage(*rank, *message);
    } else if (message.status().code() != StatusCode::kDeadlineExceeded) {
      why = message.status();
    }
  }
  Dismiss(*rank, why);
}

Result<int> GroupLeader::Admit(ControlChannel& channel) {
  ASSIGN_OR_RETURN(SessionMessage first, channel.Receive(Deadline::After(clock_, kJoinWait)));
  auto* join = std::get_if<GroupJoin>(&first);
  if (join == nullptr) {
    return Status::InvalidArgument("unexpected_message", fmt::format("{} before GroupJoin", MessageName(first)));
  }
  RETURN_IF_ERROR(CheckJoin(*join));
  MutexLock lock(mu_);
  if (disbanded_) return Status::Unavailable("peer_lost", "the leader stops");
  Member& member = members_[static_cast<std::size_t>(join->rank)];
  if (member.channel != nullptr) {
    return Status::Unavailable("rank_taken", fmt::format("trainer rank {} is process {} at {}", join->rank,
                                                         member.instance.ToString(), member.channel->peer()));
  }
  RETURN_IF_ERROR(channel.Send(GroupWelcome{.leader = instance_, .round = gathering_ ? round_ : round_ + 1}));
  member = {.channel = &channel, .instance = join->instance, .part = std::move(join->part), .entered = {}};
  layout_.reset();  // a process that comes back knows nothing any more
  LogInfo("member_joined", "trainer_rank={} instance={} peer={}", join->rank, member.instance.ToString(),
          channel.peer());
  changed_.NotifyAll();
  return join->rank;
}

Status GroupLeader::CheckJoin(const GroupJoin& join) const {
  if (join.wire_version != kWireVersion) {
    return Status::FailedPrecondition("wire_version",
                                      fmt::format("member={} leader={}", join.wire_version, kWireVersion));
  }
  if (join.group != group_) return WrongGroup("group", join.group, group_);
  if (join.world_size != world_size_) {
    return WrongGroup("world size", std::to_string(join.world_size), std::to_string(world_size_));
  }
  if (join.rank < kFirstMember || join.rank >= world_size_) {
    return WrongGroup("trainer rank", std::to_string(join.rank), fmt::format("0 of {}", world_size_));
  }
  const Status part = CheckLayout(join.part);
  if (!part.ok()) return OfRank(join.rank, part);
  if (join.part.ranks.size() == 1) return OkStatus();
  return OfRank(join.rank, Status::InvalidArgument("bad_layout", fmt::format("{} ranks", join.part.ranks.size())));
}

Status GroupLeader::OnMessage(int rank, const SessionMessage& message) {
  MutexLock lock(mu_);
  if (const auto* enter = std::get_if<GroupEnter>(&message)) {
    members_[static_cast<std::size_t>(rank)].entered = *enter;
    changed_.NotifyAll();
  } else if (const auto* planned = std::get_if<GroupPlanned>(&message)) {
    OnPlanned(rank, *planned);
  } else if (const auto* sent = std::get_if<GroupSent>(&message)) {
    if (const auto session = sessions_.find(sent->session); session != sessions_.end()) {
      session->second->OnSent(rank, *sent);
    }
  } else if (const auto* abort = std::get_if<Abort>(&message)) {
    if (abort->session == SessionId{}) {
      return abort->why.ok() ? Status::Cancelled("cancelled", "without a reason") : abort->why;
    }
    if (const auto session = sessions_.find(abort->session); session != sessions_.end()) {
      session->second->OnFailed(rank, abort->why);
    }
  } else {
    const Status why =
        Status::InvalidArgument("unexpected_message", fmt::format("{} has no place here", MessageName(message)));
    static_cast<void>(SendToLocked(rank, Abort{SessionId{}, why}));
    return why;
  }
  return OkStatus();
}

void GroupLeader::OnPlanned(int rank, const GroupPlanned& planned) {
  const auto found = agreements_.find(planned.connection);
  if (found == agreements_.end() || !found->second.answers.contains(rank)) return;
  if (planned.status.ok()) {
    found->second.answers[rank] = planned.transports;
  } else if (found->second.failure.ok()) {
    found->second.failure = OfRank(rank, planned.status);
  }
  changed_.NotifyAll();
}

void GroupLeader::Dismiss(int rank, const Status& why) {
  const Status lost = Status::Unavailable("rank_lost", why.ToString());
  LogInfo("member_lost", "trainer_rank={} why=\"{}\"", rank, why.ToString());
  MutexLock lock(mu_);
  members_[static_cast<std::size_t>(rank)] = {};
  for (auto& [id, session] : sessions_) session->OnFailed(rank, lost);
  for (auto& [connection, agreement] : agreements_) {
    if (agreement.answers.contains(rank) && agreement.failure.ok()) agreement.failure = OfRank(rank, lost);
  }
  changed_.NotifyAll();
}

Result<GroupLeader::Assembly> GroupLeader::BeginRound(std::optional<std::uint64_t> number, Deadline deadline,
                                                      const std::stop_token& stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  ++round_;
  gathering_ = true;
  Status status;
  while (status.ok() && !AllEntered()) {
    if (stop.stop_requested()) {
      status = Status::Cancelled("cancelled", "the publisher stopped it");
    } else if (deadline.Passed(clock_)) {
      status = Status::DeadlineExceeded("group_incomplete", WhoIsMissing());
    } else {
      clock_.WaitUntil(changed_, mu_, deadline.point());
    }
  }
  gathering_ = false;
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(CheckNumbers(number));
  return Assemble();
}

bool GroupLeader::CanSendAgain() const {
  MutexLock lock(mu_);
  return layout_ != nullptr && std::all_of(members_.begin() + kFirstMember, members_.end(),
                                           [](const Member& member) { return member.entered.sends_again; });
}

Status GroupLeader::BeginAgain(Deadline deadline, const std::stop_token& stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  for (Member& member : members_) {
    if (member.entered.round == round_) member.entered = {};
  }
  SendToAll(GroupAgain{round_});
  while (true) {
    ASSIGN_OR_RETURN(const bool all_have_it, AllHaveItStill());
    if (all_have_it) return OkStatus();
    if (stop.stop_requested()) return Status::Cancelled("cancelled", "the publisher stopped it");
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("group_incomplete", WhoIsMissing());
    clock_.WaitUntil(changed_, mu_, deadline.point());
  }
}

Result<bool> GroupLeader::AllHaveItStill() const {
  if (layout_ == nullptr) return Status::Unavailable("rank_lost", "another process has taken a trainer rank's place");
  bool all = true;
  for (int rank = kFirstMember; rank < world_size_; ++rank) {
    const Member& member = members_[static_cast<std::size_t>(rank)];
    if (member.channel == nullptr) return OfRank(rank, Status::Unavailable("rank_lost", "its process is gone"));
    if (member.entered.round > round_) return OfRank(rank, Status::Aborted("superseded", "publishes already"));
    if (member.entered.round != round_) {
      all = false;
    } else if (!member.entered.sends_again) {
      return OfRank(rank, Status::FailedPrecondition("source_gone", "it has not kept the version"));
    }
  }
  return all;
}

bool GroupLeader::AllEntered() const {
  return std::all_of(members_.begin() + kFirstMember, members_.end(), [this](const Member& member) REQUIRES(mu_) {
    return member.channel != nullptr && member.entered.round == round_;
  });
}

std::string GroupLeader::WhoIsMissing() const {
  std::string absent;
  std::string late;
  for (std::size_t rank = kFirstMember; rank < members_.size(); ++rank) {
    const Member& member = members_[rank];
    if (member.channel == nullptr) {
      absent += fmt::format(" {}", rank);
    } else if (member.entered.round != round_) {
      late += fmt::format(" {}", rank);
    }
  }
  std::string text = absent.empty() ? "" : fmt::format("not there: trainer rank{}", absent);
  if (!late.empty()) text += fmt::format("{}not ready to publish: trainer rank{}", text.empty() ? "" : "; ", late);
  return text;
}

Status GroupLeader::CheckNumbers(std::optional<std::uint64_t> number) const {
  for (std::size_t rank = kFirstMember; rank < members_.size(); ++rank) {
    const std::optional<std::uint64_t> theirs = members_[rank].entered.number;
    if (!number || !theirs || *number == *theirs) continue;
    return Status::FailedPrecondition(
        "version_differs", fmt::format("trainer rank {} publishes {}, trainer rank 0 {}", rank, *theirs, *number));
  }
  return OkStatus();
}

Result<GroupLeader::Assembly> GroupLeader::Assemble() {
  if (layout_ != nullptr) return Assembly{layout_, /*changed=*/false};
  std::vector<const Layout*> parts = {&part_};
  for (std::size_t rank = kFirstMember; rank < members_.size(); ++rank) parts.push_back(&members_[rank].part);
  ASSIGN_OR_RETURN(Layout merged, MergeLayouts(parts));
  layout_ = std::make_shared<const Layout>(std::move(merged));
  SendToAll(GroupLayout{*layout_});
  return Assembly{layout_, /*changed=*/true};
}

void GroupLeader::NotePacked() {
  MutexLock lock(mu_);
  SendToAll(GroupPacked{round_});
}

void GroupLeader::Conclude(GroupOutcome outcome) {
  MutexLock lock(mu_);
  outcome.round = round_;
  SendToAll(outcome);
}

void GroupLeader::Disband() {
  MutexLock lock(mu_);
  disbanded_ = true;
  for (const Member& member : members_) {
    if (member.channel != nullptr) member.channel->StopReceiving();
  }
}

bool GroupLeader::Agreement::Settled() const {
  return !failure.ok() ||
         std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer.second.has_value(); });
}

Result<std::vector<TransportEndpoint>> GroupLeader::Agree(const TeamConnection& connection,
                                                          const std::vector<TransportEndpoint>& endpoints,
                                                          Deadline deadline, const std::stop_token& stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  const GroupPlan question{.replica = connection.replica,
                           .connection = connection.connection,
                           .engine_layout = connection.engine_layout,
                           .plan_options = connection.plan_options,
                           .plan_digest = connection.plan.digest,
                           .endpoints = endpoints};
  MutexLock lock(mu_);
  Agreement& agreement = agreements_[connection.connection];
  for (const int rank : SendingMembers(connection.plan)) {
    agreement.answers[rank] = std::nullopt;
    const Status sent = SendToLocked(rank, question);
    if (!sent.ok() && agreement.failure.ok()) agreement.failure = OfRank(rank, sent);
  }
  while (!agreement.Settled()) {
    if (stop.stop_requested()) {
      agreement.failure = Status::Cancelled("cancelled", "the publisher stopped it");
    } else if (deadline.Passed(clock_)) {
      const auto silent = std::find_if(agreement.answers.begin(), agreement.answers.end(),
                                       [](const auto& answer) { return !answer.second; });
      agreement.failure = OfRank(silent->first, Status::DeadlineExceeded("deadline", "has made no plan in time"));
    } else {
      clock_.WaitUntil(changed_, mu_, deadline.point());
    }
  }
  const Agreement settled = std::move(agreement);
  agreements_.erase(connection.connection);
  RETURN_IF_ERROR(settled.failure);
  std::vector<TransportEndpoint> usable;
  for (const TransportEndpoint& endpoint : endpoints) {
    const bool by_all = std::all_of(settled.answers.begin(), settled.answers.end(), [&](const auto& answer) {
      return std::find(answer.second->begin(), answer.second->end(), endpoint.kind) != answer.second->end();
    });
    if (by_all) usable.push_back(endpoint);
  }
  return usable;
}

std::unique_ptr<TeamSession> GroupLeader::Begin(const Plan& plan, const TeamSessionTerms& terms,
                                                std::function<void()> on_change) {
  auto session = std::make_unique<GroupSession>(
      plan, terms, Round(), clock_, [this](int rank, const SessionMessage& message) { return SendTo(rank, message); },
      std::move(on_change),
      [this, id = terms.session] {
        MutexLock lock(mu_);
        sessions_.erase(id);
      });
  MutexLock lock(mu_);
  sessions_[terms.session] = session.get();
  return session;
}

std::uint64_t GroupLeader::Round() const {
  MutexLock lock(mu_);
  return round_;
}

Status GroupLeader::SendTo(int rank, const SessionMessage& message) {
  MutexLock lock(mu_);
  return SendToLocked(rank, message);
}

Status GroupLeader::SendToLocked(int rank, const SessionMessage& message) {
  ControlChannel* channel = members_[static_cast<std::size_t>(rank)].channel;
  if (channel == nullptr) return Status::Unavailable("rank_lost", "its process is gone");
  const Status sent = channel->Send(message);
  return sent.ok() ? sent : Status::Unavailable("rank_lost", sent.ToString());
}

void GroupLeader::SendToAll(const SessionMessage& message) {
  for (int rank = kFirstMember; rank < world_size_; ++rank) {
    static_cast<void>(SendToLocked(rank, message));  // the thread that serves a lost member dismisses it
  }
}

}  // namespace bascule
