#include "bridge/send/publish_session.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "bridge/manifest/manifest.h"
#include "bridge/session/session_of.h"

namespace bascule {
namespace {

// An engine that ends a session says so on the control channel and drops the routes; the routes may be heard first.
constexpr Duration kExplanationTime = std::chrono::seconds(2);

// No message of an engine can be the cause of it: a call failed, or what it needs is not there.
bool IsOwn(const Status& failure) {
  return failure.code() == StatusCode::kInternal || failure.code() == StatusCode::kFailedPrecondition;
}

std::vector<std::size_t> OrderByName(const std::vector<TensorSpec>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

// What is missing must be buckets of the plan, each named once.
Status CheckMissing(std::vector<std::uint32_t>& buckets, std::size_t bucket_count) {
  std::sort(buckets.begin(), buckets.end());
  const bool unique = std::adjacent_find(buckets.begin(), buckets.end()) == buckets.end();
  if (!buckets.empty() && unique && buckets.back() < bucket_count) return OkStatus();
  return Status::DataLoss("bad_message", fmt::format("Missing names {} buckets of {}", buckets.size(), bucket_count));
}

}  // namespace

PublishSession::PublishSession(ReplicaConnection& connection, const WeightSource& source, VersionOffer offer,
                               Deadline deadline, StopSignal stop, std::function<void()> on_sealed,
                               FlipDecider* decider)
    : connection_(connection),
      clock_(*connection.options().clock),
      offer_(std::move(offer)),
      deadline_(deadline),
      stop_(std::move(stop)),
      on_sealed_(std::move(on_sealed)),
      decider_(decider),
      packer_(connection.plan(), source),
      by_name_(OrderByName(connection.plan().tensors)) {}

SendReport PublishSession::Run() {
  report_.transport = connection_.transport();
  report_.bytes = connection_.plan().payload_bytes;
  report_.version = {.run = offer_.run, .number = offer_.number, .digest = {}};
  const Status status = RunPhases();
  report_.phase = connection_.phase();
  report_.status = connection_.Failure(status);
  if (!status.ok()) {
    EndFailed(status);
  } else {
    LogInfo("session_committed", "session={} version={} replica={}", session_.ToString(), report_.version.ToString(),
            connection_.options().address);
  }
  return report_;
}

Status PublishSession::RunPhases() {
  Status status = OfferVersion();
  if (status.ok()) status = OpenRoutes();
  return status.ok() ? SendVersion() : status;
}

Status PublishSession::SendVersion() {
  SessionSending sending(packer_, connection_, session_, deadline_);
  Status status = SendBuckets(sending);
  if (status.ok()) status = SealAndVerify(sending);
  report_.wire_bytes = sending.wire_bytes();
  if (status.ok()) {
    on_sealed_();
    status = AwaitDecision();
  }
  if (status.ok()) status = FlipNow();
  if (status.ok()) return status;
  status = NamingTheLostRank(status, sending);
  sending.End(status);
  return status;
}

Status PublishSession::OfferVersion() {
  connection_.Enter(SendPhase::kOffer);
  if (connection_.plan().scope.empty() == offer_.base.has_value()) {
    return Status::InvalidArgument("bad_manifest", "a scope and a base belong together");
  }
  RETURN_IF_ERROR(connection_.inbox().Send(Offer{.session = session_,
                                                 .term = offer_.term,
                                                 .take_over = offer_.take_over,
                                                 .first = offer_.first,
                                                 .manifest = Manifest(),
                                                 .plan_digest = connection_.plan().digest,
                                                 .transport = connection_.transport(),
                                                 .frame_bytes = connection_.frame_bytes(),
                                                 .credits = connection_.credits(),
                                                 .time_left = deadline_.Left(clock_)}));
  ASSIGN_OR_RETURN(const Accept accept, Expect<Accept>());
  return offer_.base ? TakeBase(accept.base) : OkStatus();
}

ManifestOffer PublishSession::Manifest() const {
  const Plan& plan = connection_.plan();
  ManifestOffer manifest{.run = offer_.run,
                         .number = offer_.number,
                         .new_run = offer_.new_run,
                         .model = connection_.options().model,
                         .tensors = {},
                         .sender_layout = plan.sender_layout,
                         .labels = offer_.labels,
                         .families = offer_.families,
                         .scope = plan.scope,
                         .base = offer_.base};
  for (const std::size_t tensor : by_name_) manifest.tensors.push_back(plan.tensors[tensor]);
  return manifest;
}

// The engine's word for what its live version is made of is worth what it hashes to.
Status PublishSession::TakeBase(const std::vector<TensorDigest>& digests) {
  const std::vector<TensorSpec>& tensors = connection_.plan().tensors;
  if (digests.size() != tensors.size()) {
    return Status::DataLoss("bad_message",
                            fmt::format("Accept has {} digests of {} tensors", digests.size(), tensors.size()));
  }
  base_.resize(tensors.size());
  for (std::size_t i = 0; i < by_name_.size(); ++i) base_[by_name_[i]] = digests[i];
  const Hash256 digest = VersionDigestOf(tensors, base_);
  if (digest == offer_.base->digest) return OkStatus();
  return Status::DataLoss("digest_mismatch",
                          fmt::format("the engine's tensors of base {} have digest {}, the base has {}",
                                      offer_.base->ToString(), digest.ToHex(), offer_.base->digest.ToHex()));
}

Status PublishSession::OpenRoutes() {
  connection_.Enter(SendPhase::kSend);
  const Status opened = connection_.OpenRoutes(packer_.source(), deadline_);
  return opened.ok() ? opened : Explained(opened);
}

Status PublishSession::SendBuckets(SessionSending& sending) {
  sending.SendAll();
  return Await(sending);
}

Status PublishSession::Await(SessionSending& sending) {
  Result<std::optional<SessionMessage>> event = NextEvent(deadline_, [&] { return sending.finished(); });
  const std::string unfinished = sending.Unfinished();
  if (!event.ok() || event->has_value()) sending.Cancel();
  const Status sent = sending.Finish();
  source_failed_ = !sent.ok() && sending.source_failed();
  if (!event.ok()) {
    const Status why = event.status();
    return unfinished.empty() ? why : why.WithContext(unfinished + " still sending");
  }
  if (event->has_value()) {
    engine_ended_ = std::holds_alternative<Abort>(**event);
    return Unexpected(**event);
  }
  return sent.ok() || sending.explains_itself() ? sent : Explained(sent);
}

Status PublishSession::SealAndVerify(SessionSending& sending) {
  for (bool may_send_again = true;; may_send_again = false) {
    connection_.Enter(SendPhase::kSeal);
    RETURN_IF_ERROR(SendSeal(sending));
    connection_.Enter(SendPhase::kVerify);
    ASSIGN_OR_RETURN(SessionMessage answer, NextMessage(deadline_));
    if (const auto* ready = std::get_if<Ready>(&answer); ready != nullptr && ready->session == session_) {
      report_.stage_ms = ready->stage_ms;
      report_.verify_ms = ready->verify_ms;
      return OkStatus();
    }
    auto* missing = std::get_if<Missing>(&answer);
    if (missing == nullptr || missing->session != session_) return Unexpected(answer);
    connection_.Enter(SendPhase::kSeal);
    RETURN_IF_ERROR(CheckMissing(missing->buckets, connection_.plan().buckets.size()));
    if (!may_send_again) {
      return Status::DataLoss("buckets_missing",
                              fmt::format("{} buckets did not arrive though sent again, bucket={} first",
                                          missing->buckets.size(), missing->buckets.front()));
    }
    sending.SendAgain(missing->buckets);
    RETURN_IF_ERROR(Await(sending));
  }
}

Status PublishSession::SendSeal(const SessionSending& sending) {
  std::vector<TensorDigest> totals = sending.Totals();
  for (std::size_t t = 0; t < totals.size(); ++t) {
    const TensorSpec& tensor = connection_.plan().tensors[t];
    totals[t] = packer_.source().HoldersDigest(tensor).value_or(totals[t]);
    if (const auto recorded = offer_.recorded.find(tensor.name); recorded != offer_.recorded.end()) {
      totals[t] = recorded->second;
    }
    if (IsCarried(connection_.plan(), static_cast<std::int32_t>(t))) totals[t] = base_[t];
  }
  ManifestSeal seal{.digests = {}, .version_digest = VersionDigestOf(connection_.plan().tensors, totals)};
  for (const std::size_t tensor : by_name_) seal.digests.push_back(totals[tensor]);
  report_.version.digest = seal.version_digest;
  return connection_.inbox().Send(Seal{.session = session_, .manifest = std::move(seal)});
}

Status PublishSession::AwaitDecision() {
  if (decider_ == nullptr) return OkStatus();
  connection_.Enter(SendPhase::kDecide);
  decider_->Ready(report_.version, [this] { connection_.inbox().Wake(); });
  const Result<std::optional<SessionMessage>> event =
      NextEvent(deadline_, [this] { return decider_->decision().has_value(); });
  Status why = event.status();
  bool gone = why.reason() == "peer_lost" || why.code() == StatusCode::kDataLoss;
  if (event.ok() && event->has_value()) {
    engine_ended_ = gone = std::holds_alternative<Abort>(**event);
    why = Unexpected(**event);
  }
  const std::optional<Status> decided = decider_->Withdraw(why);
  if (gone) return why;
  // Whoever stops this publish comes too late for what has been decided.
  const bool committed = decided && decided->ok();
  if (stop_.token().stop_requested() && !committed) return stop_.Explain(Status::Cancelled("cancelled"));
  return decided.value_or(why);
}

Status PublishSession::FlipNow() {
  connection_.Enter(SendPhase::kFlip);
  report_.decided = true;
  if (decider_ != nullptr) stop_ = {};
  RETURN_IF_ERROR(connection_.inbox().Send(Flip{.session = session_}));
  ASSIGN_OR_RETURN(const Committed committed, Expect<Committed>());
  if (committed.report.version != report_.version) {
    return Status::DataLoss("bad_message", fmt::format("{} went live, not {}", committed.report.version.ToString(),
                                                       report_.version.ToString()));
  }
  report_.flip = committed.report;
  connection_.NoteCommitted(report_.version);
  return OkStatus();
}

Result<std::optional<SessionMessage>> PublishSession::NextEvent(Deadline deadline, const std::function<bool()>& done) {
  while (true) {
    Result<std::optional<SessionMessage>> message = connection_.inbox().Next(deadline, stop_.token(), done);
    if (!message.ok()) return stop_.Explain(message.status());
    // What the engine still has to say of a session that is over does not touch this one.
    const SessionId session = message->has_value() ? SessionOf(**message) : SessionId{};
    if (session == SessionId{} || session == session_) return message;
  }
}

Result<SessionMessage> PublishSession::NextMessage(Deadline deadline) {
  ASSIGN_OR_RETURN(std::optional<SessionMessage> message, NextEvent(deadline));
  engine_ended_ = std::holds_alternative<Abort>(*message);
  return std::move(*message);
}

template <typename T>
Result<T> PublishSession::Expect() {
  ASSIGN_OR_RETURN(SessionMessage message, NextMessage(deadline_));
  if (T* wanted = std::get_if<T>(&message); wanted != nullptr && wanted->session == session_) return std::move(*wanted);
  return Unexpected(message);
}

Status PublishSession::Explained(const Status& failure) {
  if (IsOwn(failure)) return failure;
  const Result<SessionMessage> message = NextMessage(std::min(deadline_, Deadline::After(clock_, kExplanationTime)));
  if (message.ok()) return engine_ended_ ? Unexpected(*message) : failure;
  // An engine that is gone is why its routes end, or are refused by whoever listens there now.
  return message.status().reason() == "peer_lost" ? message.status() : failure;
}

Status PublishSession::NamingTheLostRank(const Status& failure, const SessionSending& sending) {
  if (!engine_ended_ || failure.reason() != "peer_lost") return failure;
  static_cast<void>(connection_.inbox().Next(std::min(deadline_, Deadline::After(clock_, kExplanationTime)),
                                             stop_.token(),
                                             [&] { return sending.team_failed() || !sending.has_team(); }));
  return sending.team_failed() ? sending.team_failure() : failure;
}

void PublishSession::EndFailed(const Status& why) {
  LogInfo("publish_failed", "session={} version={} replica={} phase={} why={}", session_.ToString(),
          report_.version.ToString(), connection_.options().address, SendPhaseName(report_.phase), why.ToString());
  if (!source_failed_) connection_.NoteFailure(why);
  if (!engine_ended_) {
    // Best effort: an engine that cannot be told sees the channel close. One whose time is over knows that itself, and
    // may be too stuck to be waited for.
    const Status told = connection_.inbox().Send(Abort{.session = session_, .why = why});
    if (told.ok() && why.code() != StatusCode::kDeadlineExceeded) connection_.inbox().FinishSending();
  }
  connection_.Close();
}

SendReport PublishOnce(const WeightSource& source, ConnectionOptions connection, VersionOffer offer, Deadline deadline,
                       StopSignal stop) {
  if (connection.publisher.value == 0) connection.publisher = InstanceId::Mint();
  PlanCache plans;
  ReplicaConnection replica(std::move(connection), plans);
  if (const Status opened = replica.Open(source.layout(), deadline, stop.token()); !opened.ok()) {
    SendReport report;
    report.status = replica.Failure(opened);
    report.phase = replica.phase();
    return report;
  }
  return PublishSession(replica, source, std::move(offer), deadline, stop, [] {}).Run();
}

}  // namespace bascule
