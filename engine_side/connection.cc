#include "engine_side/connection.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "bridge/session/session_of.h"
#include "engine_side/carry_over.h"
#include "engine_side/rollback.h"

namespace bascule {
namespace {

constexpr Duration kHelloWait = std::chrono::seconds(30);
constexpr Duration kIdleWait = std::chrono::hours(1);

// Scales of one version under the weight of another mean nothing.
Status CheckFamiliesAreWhole(const Plan& plan, const std::vector<QuantizationFamily>& families) {
  std::set<std::string_view> carried;
  for (const std::int32_t tensor : plan.carried) carried.insert(plan.tensors[static_cast<std::size_t>(tensor)].name);
  for (const QuantizationFamily& family : families) {
    const auto outside =
        std::ranges::count_if(family.members, [&](const auto& name) { return carried.contains(name); });
    if (outside == 0 || outside == std::ssize(family.members)) continue;
    return Status::FailedPrecondition(
        "family_split", fmt::format("the scope has {} of {} tensors of {} ({})", std::ssize(family.members) - outside,
                                    family.members.size(), family.name, family.scheme));
  }
  return OkStatus();
}

}  // namespace

Connection::Connection(ControlChannel& channel, ReceiverParts& parts)
    : channel_(channel), parts_(parts), id_(SessionId::Mint().value) {}

Connection::~Connection() {
  Replace(nullptr);
  for (TransportListener* listener : parts_.options.listeners) listener->Forget(id_);
  for (const auto& route : routes_) route->RequestStop();
}

Status Connection::Serve() {
  Status why = Greet();
  while (why.ok()) {
    const Result<SessionMessage> message = channel_.Receive(NextWake());
    if (message.ok()) {
      OnMessage(*message);
    } else if (message.status().code() == StatusCode::kDeadlineExceeded) {
      OnTime();
    } else {
      why = message.status();
    }
  }
  // Also a session that is Ready ends now, before its deadline: its decision could come only on this channel, and a
  // publisher that has lost its connection presumes an abort.
  if (const auto session = current()) {
    session->End(why.reason() == "peer_lost" ? SessionEvent::kPeerLost : SessionEvent::kAbort, why);
  }
  Send(Abort{SessionId{}, why});
  return why;
}

Status Connection::Greet() {
  ASSIGN_OR_RETURN(const SessionMessage first, channel_.Receive(Deadline::After(parts_.clock, kHelloWait)));
  const Hello* hello = std::get_if<Hello>(&first);
  if (hello == nullptr) {
    return Status::InvalidArgument("unexpected_message", fmt::format("{} before Hello", MessageName(first)));
  }
  ASSIGN_OR_RETURN(const HelloReply reply, Answer(*hello));
  return channel_.Send(reply);
}

Result<HelloReply> Connection::Answer(const Hello& hello) {
  if (hello.wire_version != kWireVersion) {
    return Status::FailedPrecondition("wire_version",
                                      fmt::format("publisher={} engine={}", hello.wire_version, kWireVersion));
  }
  publisher_ = hello.publisher;
  RETURN_IF_ERROR(CheckModel(hello.model));
  if (parts_.options.full_tensors_only && !HoldsFullTensors(hello.sender_layout)) {
    return Status::FailedPrecondition("full_tensors_only", "the publisher's layout has parts of tensors");
  }
  ASSIGN_OR_RETURN(plan_, parts_.plans.PlanFor(hello.sender_layout, hello.plan_options));
  HelloReply reply;
  reply.engine = parts_.engine;
  reply.model = parts_.options.model;
  reply.engine_layout = parts_.options.layout;
  reply.live = parts_.slots.live().value_or(WeightVersion{});
  reply.kept = parts_.slots.kept().value_or(WeightVersion{});
  reply.connection = id_;
  reply.max_credits = parts_.options.max_credits;
  reply.highest_number = parts_.registry.HighestNumber(reply.live.run);
  for (TransportListener* listener : parts_.options.listeners) {
    listener->Expect(id_);
    reply.endpoints.push_back(listener->endpoint());
  }
  return reply;
}

Deadline Connection::NextWake() const {
  const auto session = current();
  if (session != nullptr && !session->over()) return session->terms().deadline;
  return Deadline::After(parts_.clock, kIdleWait);
}

void Connection::OnTime() {
  const auto session = current();
  if (session == nullptr || !session->terms().deadline.Passed(parts_.clock)) return;
  session->End(SessionEvent::kDeadline, Status::DeadlineExceeded("deadline", "the session's time is over"));
}

void Connection::OnMessage(const SessionMessage& message) {
  if (const Offer* offer = std::get_if<Offer>(&message)) {
    OnOffer(*offer);
  } else if (const Seal* seal = std::get_if<Seal>(&message)) {
    if (const auto session = SessionOf(seal->session)) session->OnSeal(*seal);
  } else if (const Flip* flip = std::get_if<Flip>(&message)) {
    if (const auto session = SessionOf(flip->session)) session->OnFlip(*flip);
  } else if (const Abort* abort = std::get_if<Abort>(&message)) {
    const Status why = abort->why.ok() ? Status::Cancelled("cancelled", "without a reason") : abort->why;
    const auto session = current();
    if (session != nullptr && session->terms().offer.session == abort->session) {
      session->End(SessionEvent::kAbort, why.WithContext("the publisher says"));
    }
  } else if (const Require* require = std::get_if<Require>(&message)) {
    parts_.board.Require(require->version);
  } else if (const RollBack* roll_back = std::get_if<RollBack>(&message)) {
    const Result<FlipReport> report = RollBackReceiver(parts_, *roll_back);
    Send(report.ok() ? SessionMessage(RolledBack{*report}) : SessionMessage(Abort{SessionId{}, report.status()}));
  } else {
    Send(Abort{
        bascule::SessionOf(message),
        Status::InvalidArgument("unexpected_message", fmt::format("{} has no place here", MessageName(message)))});
  }
}

void Connection::OnOffer(const Offer& offer) {
  if (const auto session = current(); session != nullptr && session->terms().offer.session == offer.session) return;
  Status status = CheckOffered(offer);
  if (status.ok()) status = OpenRoutes(offer.transport);
  if (status.ok()) {
    const Duration time = std::min(offer.time_left, parts_.options.max_session);
    auto session =
        std::make_shared<ReceiveSession>(SessionTerms{publisher_, offer, plan_, Deadline::After(parts_.clock, time)},
                                         parts_, [this](const SessionMessage& message) { Send(message); });
    status = parts_.registry.Open(session);
    if (status.ok()) {
      parts_.board.Offered(offer.manifest.run, offer.manifest.number);
      Replace(session);
      session->Begin();
      return;
    }
  }
  LogInfo("offer_refused", "peer={} version={}@{} why=\"{}\"", channel_.peer(), offer.manifest.run,
          offer.manifest.number, status.ToString());
  Send(Abort{offer.session, std::move(status)});
}

Status Connection::CheckModel(const std::string& model) const {
  const std::string& own = parts_.options.model;
  if (model.empty() || own.empty() || model == own) return OkStatus();
  return Status::FailedPrecondition("wrong_model", fmt::format("publisher has \"{}\", engine has \"{}\"", model, own));
}

Status Connection::CheckOffered(const Offer& offer) const {
  const ManifestOffer& manifest = offer.manifest;
  RETURN_IF_ERROR(CheckModel(manifest.model));
  RETURN_IF_ERROR(CheckOffer(manifest));
  RETURN_IF_ERROR(parts_.registry.CheckNumber(offer));
  const Plan& plan = plan_->plan;
  if (offer.plan_digest != plan.digest) {
    return Status::FailedPrecondition(
        "plan_mismatch", fmt::format("publisher={} engine={}", offer.plan_digest.ToHex(), plan.digest.ToHex()));
  }
  bool same = manifest.sender_layout == plan.sender_layout && manifest.scope == plan.scope &&
              manifest.tensors.size() == plan.tensors.size();
  for (std::size_t i = 0; same && i < plan.tensors.size(); ++i) {
    same = manifest.tensors[i] == plan.tensors[plan_->manifest_order[i]];
  }
  if (!same) {
    return Status::FailedPrecondition("manifest_mismatch",
                                      "tensors, scope or sender layout of the offer are not the plan's");
  }
  RETURN_IF_ERROR(CheckFamilies(manifest.families));
  RETURN_IF_ERROR(CheckLimits(offer));
  return manifest.base ? CheckBase(parts_.slots.live(), *manifest.base) : OkStatus();
}

// A weight under the scales of another scheme has all the right shapes.
Status Connection::CheckFamilies(const std::vector<QuantizationFamily>& offered) const {
  const std::vector<QuantizationFamily>& own = parts_.options.families;
  if (offered == own) return CheckFamiliesAreWhole(plan_->plan, own);
  const auto [theirs, ours] = std::ranges::mismatch(offered, own);
  const auto shown = [](const auto& families, const auto& at) {
    return at == families.end() ? "none" : fmt::format("{} ({})", at->name, at->scheme);
  };
  return Status::FailedPrecondition(
      "families_differ", fmt::format("of {} and {} quantised weights the first that differs: publisher {}, engine {}",
                                     offered.size(), own.size(), shown(offered, theirs), shown(own, ours)));
}

Status Connection::CheckLimits(const Offer& offer) const {
  if (offer.session == SessionId{}) return Status::InvalidArgument("bad_offer", "session=0");
  if (offer.time_left <= Duration::zero()) {
    return Status::InvalidArgument("bad_offer", fmt::format("time_left_ms={}", MsOf(offer.time_left)));
  }
  if (offer.frame_bytes < plan_->largest_frame_bytes || offer.frame_bytes > kMaxFrameBytes) {
    return Status::InvalidArgument("bad_offer", fmt::format("frame_bytes={} least={} most={}", offer.frame_bytes,
                                                            plan_->largest_frame_bytes, kMaxFrameBytes));
  }
  if (offer.credits < 1 || offer.credits > parts_.options.max_credits) {
    return Status::InvalidArgument("bad_offer",
                                   fmt::format("credits={} most={}", offer.credits, parts_.options.max_credits));
  }
  return OkStatus();
}

Status Connection::OpenRoutes(TransportKind kind) {
  {
    MutexLock lock(mu_);
    if (!route_lost_.ok()) return Status::Unavailable("route_lost", route_lost_.ToString());
  }
  if (listener_ != nullptr && listener_->endpoint().kind != kind) {
    return Status::InvalidArgument(
        "bad_offer", fmt::format("the routes of this connection are {}", TransportName(listener_->endpoint().kind)));
  }
  if (listener_ != nullptr) return OkStatus();
  for (TransportListener* listener : parts_.options.listeners) {
    if (listener->endpoint().kind == kind) listener_ = listener;
  }
  if (listener_ == nullptr) {
    return Status::Unimplemented("transport_unavailable", std::string(TransportName(kind)));
  }
  BucketSink& sink = *this;
  for (const Route route : plan_->plan.routes) {
    const int index = static_cast<int>(routes_.size());
    auto reader = RouteReader::Start(*listener_, id_, index, route, sink, parts_.clock, parts_.options.staging);
    if (!reader.ok()) {
      MutexLock lock(mu_);
      route_lost_ = reader.status();  // a later offer needs a connection with all of its routes
      return reader.status();
    }
    routes_.push_back(*std::move(reader));
  }
  return OkStatus();
}

std::shared_ptr<ReceiveSession> Connection::SessionOf(SessionId id) {
  auto session = current();
  if (session != nullptr && session->terms().offer.session == id) return session;
  Send(Abort{id, Status::NotFound("unknown_session", id.ToString())});
  return nullptr;
}

// Routes find the session from here on, so before its Accept. The one before is over.
void Connection::Replace(std::shared_ptr<ReceiveSession> session) {
  {
    MutexLock lock(mu_);
    session_.swap(session);
  }
  if (session != nullptr) session->AwaitThread();
}

std::shared_ptr<ReceiveSession> Connection::current() const {
  MutexLock lock(mu_);
  return session_;
}

BucketAck Connection::OnBucket(int route, const ReceivedFrame& frame) {
  if (const auto session = current()) return session->OnBucket(route, frame);
  const Result<BucketHeader> header = ParseBucketHeader(frame.bytes, PlaceOfPayload(frame));
  if (!header.ok()) return BucketAck{kNoBucket, 0, BucketVerdict::kDamaged};
  return BucketAck{header->bucket, header->attempt, BucketVerdict::kFenced};
}

void Connection::OnRouteLost(int route, const Status& why) {
  const Route ranks = plan_->plan.routes[static_cast<std::size_t>(route)];
  const Status lost =
      why.WithContext(fmt::format("route of sender rank {} to engine rank {}", ranks.sender_rank, ranks.engine_rank));
  std::shared_ptr<ReceiveSession> session;
  {
    MutexLock lock(mu_);
    route_lost_ = lost;
    session = session_;
  }
  if (session != nullptr) session->End(SessionEvent::kPeerLost, lost);
}

// A peer that is gone shows in the next Receive.
void Connection::Send(const SessionMessage& message) {
  if (const Status status = channel_.Send(message); !status.ok()) {
    LogDebug("send_failed", "peer={} message={} why=\"{}\"", channel_.peer(), MessageName(message), status.ToString());
  }
}

}  // namespace bascule
