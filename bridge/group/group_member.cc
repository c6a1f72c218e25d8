#include "bridge/group/group_member.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "bridge/group/merge_layouts.h"

namespace bascule {
namespace {

constexpr Duration kTryAgain = std::chrono::milliseconds(200);
// The leader says who was late or lost when its own time is over.
constexpr Duration kGrace = std::chrono::seconds(1);
constexpr Duration kLookAgain = std::chrono::seconds(1);  // while there is nothing to do between rounds

bool IsWorthAnotherTry(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
}

}  // namespace

GroupMember::GroupMember(GroupMemberOptions options, Layout part)
    : options_(std::move(options)), part_(std::move(part)), plans_(options_.rank), patience_(Deadline::At({})) {}

GroupMember::~GroupMember() { Leave(Status::Cancelled("cancelled", "the process leaves")); }

Result<GroupOutcome> GroupMember::TakePart(std::optional<std::uint64_t> number, const RoundHooks& hooks,
                                           Deadline deadline, const std::stop_token& stop) {
  Status status = Join(deadline, stop);
  sending_ = round_;
  const GroupEnter enter{.round = round_, .number = number, .sends_again = hooks.sends_again};
  if (status.ok()) status = inbox_->Send(enter);
  Result<GroupOutcome> outcome = status.ok() ? FollowLeader(hooks, deadline, stop) : status;
  EndSessions();
  hooks.packed();
  ++round_;
  if (outcome.ok()) return outcome;
  Leave(outcome.status());
  return outcome.status().WithContext(fmt::format("trainer rank 0 at {}", options_.leader));
}

Status GroupMember::Join(Deadline deadline, const std::stop_token& stop) {
  if (inbox_ != nullptr && inbox_->Stands()) return OkStatus();
  Status why;  // of the last try that had time for an answer
  while (true) {
    const Status joined = TryToJoin(deadline, stop);
    if (joined.ok()) return joined;
    Leave(joined);
    const bool in_time = !deadline.Passed(*options_.clock);
    if (in_time || why.ok()) why = joined;
    if (!in_time || !IsWorthAnotherTry(joined)) return why;
    const TimePoint next = std::min(deadline.point(), options_.clock->Now() + kTryAgain);
    if (!options_.clock->SleepUntil(next, stop)) return Status::Cancelled("cancelled", "the publisher stopped it");
  }
}

Status GroupMember::TryToJoin(Deadline deadline, const std::stop_token& stop) {
  Leave(Status::Unavailable("peer_lost"));
  const Deadline soon = std::min(deadline, Deadline::After(*options_.clock, options_.connect_timeout));
  ASSIGN_OR_RETURN(auto channel, options_.control->Dial(options_.leader, soon));
  inbox_ = std::make_unique<ControlInbox>(std::move(channel), *options_.clock);
  RETURN_IF_ERROR(inbox_->Send(GroupJoin{.wire_version = kWireVersion,
                                         .group = options_.group,
                                         .rank = options_.rank,
                                         .world_size = options_.world_size,
                                         .instance = instance_,
                                         .part = part_}));
  ASSIGN_OR_RETURN(std::optional<SessionMessage> answer, inbox_->Next(deadline, stop));
  if (const auto* abort = std::get_if<Abort>(&*answer); abort != nullptr && !abort->why.ok()) return abort->why;
  const auto* welcome = std::get_if<GroupWelcome>(&*answer);
  if (welcome == nullptr) {
    return Status::InvalidArgument("unexpected_message", fmt::format("{} has no place here", MessageName(*answer)));
  }
  round_ = welcome->round;
  LogInfo("group_joined", "trainer_rank={} leader={} round={}", options_.rank, options_.leader, round_);
  return OkStatus();
}

void GroupMember::Leave(const Status& why) {
  sessions_.clear();
  if (inbox_ != nullptr && inbox_->Send(Abort{SessionId{}, why}).ok()) inbox_->FinishSending();
  inbox_.reset();
  connections_.clear();
  layout_.reset();
}

Result<GroupOutcome> GroupMember::FollowLeader(const RoundHooks& hooks, Deadline deadline,
                                               const std::stop_token& stop) {
  patience_ = Deadline::At(deadline.point() + kGrace);
  while (true) {
    ASSIGN_OR_RETURN(std::optional<SessionMessage> message,
                     inbox_->Next(patience_, stop, [this] { return HasNews(); }));
    if (!message) {
      RETURN_IF_ERROR(TellNews());
      continue;
    }
    if (auto* outcome = std::get_if<GroupOutcome>(&*message)) {
      if (outcome->round == round_) return std::move(*outcome);
      continue;  // of a round before this process was here
    }
    RETURN_IF_ERROR(OnMessage(std::move(*message), hooks));
  }
}

Status GroupMember::Attend(const RoundHooks& hooks, const std::stop_token& stop) {
  sending_ = round_ - 1;
  const Status ended = AnswerLeader(hooks, stop);
  GiveWay();
  if (stop.stop_requested()) return OkStatus();
  Leave(ended);
  return ended;
}

Status GroupMember::AnswerLeader(const RoundHooks& hooks, const std::stop_token& stop) {
  while (true) {
    Result<std::optional<SessionMessage>> message =
        inbox_->Next(Deadline::After(*options_.clock, kLookAgain), stop, [this] { return HasNews(); });
    if (message.status().code() == StatusCode::kDeadlineExceeded) continue;
    RETURN_IF_ERROR(message.status());
    if (!message->has_value()) {
      RETURN_IF_ERROR(TellNews());
    } else if (const auto* again = std::get_if<GroupAgain>(&**message)) {
      const GroupEnter answer{
          .round = again->round, .number = {}, .sends_again = hooks.sends_again && again->round == sending_};
      RETURN_IF_ERROR(inbox_->Send(answer));
    } else if (std::holds_alternative<GroupOutcome>(**message)) {
      EndSessions();
    } else {
      RETURN_IF_ERROR(OnMessage(std::move(**message), hooks));
    }
  }
}

// The leader may still want something of sessions that have sent everything.
void GroupMember::GiveWay() {
  const Status why = Status::Aborted("superseded", "the trainer rank publishes a newer version");
  while (!sessions_.empty()) {
    const SessionId session = sessions_.begin()->first;
    if (inbox_ != nullptr) static_cast<void>(inbox_->Send(Abort{session, why}));
    EndSession(session);
  }
  source_ = nullptr;
}

Status GroupMember::OnMessage(SessionMessage message, const RoundHooks& hooks) {
  if (auto* layout = std::get_if<GroupLayout>(&message)) return OnLayout(std::move(*layout));
  if (const auto* plan = std::get_if<GroupPlan>(&message)) return OnPlan(*plan);
  if (const auto* send = std::get_if<GroupSend>(&message)) return OnSend(*send, hooks);
  if (const auto* missing = std::get_if<Missing>(&message)) {
    const auto session = sessions_.find(missing->session);
    return session == sessions_.end() ? OkStatus() : session->second->SendAgain(missing->buckets);
  }
  if (const auto* fetch = std::get_if<GroupFetch>(&message)) {
    const auto session = sessions_.find(fetch->session);
    return session == sessions_.end() ? OkStatus() : session->second->Fetch(*fetch);
  }
  if (const auto* abort = std::get_if<Abort>(&message)) {
    if (abort->session == SessionId{}) {
      return abort->why.ok() ? Status::Cancelled("cancelled", "without a reason") : abort->why;
    }
    EndSession(abort->session);
    return OkStatus();
  }
  if (const auto* packed = std::get_if<GroupPacked>(&message)) {
    if (packed->round == round_) hooks.packed();
    return OkStatus();
  }
  if (std::holds_alternative<GroupAgain>(message)) return OkStatus();  // of a round that this rank has gone on from
  return Status::InvalidArgument("unexpected_message", fmt::format("{} has no place here", MessageName(message)));
}

Status GroupMember::OnLayout(GroupLayout message) {
  RETURN_IF_ERROR(CheckLayout(message.layout));
  if (std::cmp_not_equal(message.layout.ranks.size(), options_.world_size) ||
      !ShowsPart(message.layout, options_.rank, part_)) {
    return Status::DataLoss("bad_message", "the leader's layout shows other tensors of this rank than it has");
  }
  if (layout_ && LayoutDigest(*layout_) == LayoutDigest(message.layout)) return OkStatus();  // it came twice
  sessions_.clear();  // they send over the connections
  connections_.clear();
  layout_ = std::move(message.layout);
  return OkStatus();
}

Status GroupMember::OnPlan(const GroupPlan& question) {
  // Whoever has not heard the layout starts anew.
  if (!layout_) return Status::InvalidArgument("unexpected_message", "GroupPlan before GroupLayout");
  GroupPlanned answer{.connection = question.connection, .status = {}, .transports = {}};
  if (Result<std::shared_ptr<const Plan>> plan = MakeSamePlan(question); !plan.ok()) {
    answer.status = plan.status();
  } else if (const auto known = connections_.find(question.connection); known == connections_.end()) {
    std::erase_if(sessions_, [&](const auto& entry) {
      return connections_.at(entry.second->connection()).replica == question.replica;
    });
    std::erase_if(connections_, [&](const auto& entry) { return entry.second.replica == question.replica; });
    connections_[question.connection] = {
        .replica = question.replica, .plan = std::move(*plan), .routes = {}, .casts = {}};
  } else if (known->second.replica != question.replica || known->second.plan->digest != question.plan_digest) {
    return Status::DataLoss("bad_message", "GroupPlan names a connection twice");
  }  // else the same question came twice, and a session may send over the connection
  for (const TransportDialer* dialer : options_.transports) {
    const bool usable =
        std::any_of(question.endpoints.begin(), question.endpoints.end(), [&](const TransportEndpoint& endpoint) {
          return endpoint.kind == dialer->kind() && dialer->CanReach(endpoint) && !dialer->Avoids(endpoint);
        });
    if (usable) answer.transports.push_back(dialer->kind());
  }
  return inbox_->Send(answer);
}

Result<std::shared_ptr<const Plan>> GroupMember::MakeSamePlan(const GroupPlan& question) {
  ASSIGN_OR_RETURN(auto plan, plans_.PlanFor(*layout_, question.engine_layout, question.plan_options));
  if (plan->digest == question.plan_digest) return plan;
  return Status::FailedPrecondition(
      "plan_mismatch", fmt::format("leader={} member={}", question.plan_digest.ToHex(), plan->digest.ToHex()));
}

// What is wrong with one session is said of that session; others go on.
Status GroupMember::OnSend(const GroupSend& order, const RoundHooks& hooks) {
  const Status started = StartSession(order, hooks);
  return started.ok() ? started : inbox_->Send(Abort{order.session, started});
}

Status GroupMember::StartSession(const GroupSend& order, const RoundHooks& hooks) {
  if (order.round != sending_) {
    return Status::Aborted("superseded",
                           fmt::format("round={} is over, the trainer rank is at {}", order.round, sending_));
  }
  if (sessions_.contains(order.session)) return OkStatus();  // it came twice
  const auto connection = connections_.find(order.connection);
  if (connection == connections_.end()) return Status::DataLoss("bad_message", "GroupSend on an unknown connection");
  const auto dialer = std::find_if(options_.transports.begin(), options_.transports.end(),
                                   [&](const TransportDialer* d) { return d->kind() == order.endpoint.kind; });
  if (dialer == options_.transports.end()) {
    return Status::Unimplemented("transport_unavailable", std::string(TransportName(order.endpoint.kind)));
  }
  const bool in_use = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second->connection() == order.connection && !entry.second->idle();
  });
  if (in_use) return Status::DataLoss("bad_message", "GroupSend while a session sends over the connection");
  const Plan& plan = *connection->second.plan;
  if (order.frame_bytes < MaxFrameBytes(plan) || order.frame_bytes > kMaxFrameBytes) {
    return Status::DataLoss("bad_message", fmt::format("frame_bytes={}, this rank needs {}, at most {} go",
                                                       order.frame_bytes, MaxFrameBytes(plan), kMaxFrameBytes));
  }
  if (source_ == nullptr) {
    ASSIGN_OR_RETURN(source_, hooks.source(plan));
  }
  patience_ = std::max(patience_, Deadline::After(*options_.clock, order.time_left + kGrace));
  sessions_[order.session] =
      std::make_unique<MemberSession>(connection->second, *source_, order, **dialer, options_.connect_timeout,
                                      options_.pacer, *options_.clock, [this] { inbox_->Wake(); });
  return OkStatus();
}

void GroupMember::EndSessions() {
  while (!sessions_.empty()) {
    const auto first = sessions_.begin();
    if (first->second->idle()) {
      sessions_.erase(first);
    } else {
      EndSession(first->first);
    }
  }
  source_ = nullptr;
}

// Routes of a session that failed cannot be used again.
void GroupMember::EndSession(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const std::uint64_t connection = found->second->connection();
  std::erase_if(sessions_, [&](const auto& entry) { return entry.second->connection() == connection; });
  connections_.erase(connection);
}

bool GroupMember::HasNews() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry.second->has_news(); });
}

Status GroupMember::TellNews() {
  for (const auto& [id, session] : sessions_) {
    if (!session->has_news()) continue;
    if (const auto news = session->TakeNews()) RETURN_IF_ERROR(inbox_->Send(*news));
  }
  return OkStatus();
}

}  // namespace bascule
