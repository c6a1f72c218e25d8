#include "bridge/send/replica_connection.h"

#include <algorithm>
#include <utility>

#include "base/net_address.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/transport/nccl/messages.h"
#include "device/device.h"

namespace bascule {
namespace {

// An engine that listens on every address of its host takes routes where its control channel was reached.
TransportEndpoint SeenFrom(const std::string& control, TransportEndpoint endpoint) {
  if (Result<NcclAddress> nccl = ParseNcclAddress(endpoint.address);
      endpoint.kind == TransportKind::kNccl && nccl.ok()) {
    nccl->carrier = SeenFrom(control, nccl->carrier);
    endpoint.address = ToAddress(*nccl);
  }
  const auto there = NetAddress::Parse(endpoint.address);
  const auto here = NetAddress::Parse(control);
  if (endpoint.kind != TransportKind::kGrpc || !there.ok() || !there->is_wildcard()) return endpoint;
  if (!here.ok() || here->is_unix()) return endpoint;
  endpoint.address = NetAddress{.host = here->host, .port = there->port, .unix_path = ""}.ToString();
  return endpoint;
}

}  // namespace

ReplicaConnection::ReplicaConnection(ConnectionOptions options, PlanCache& plans)
    : options_(std::move(options)), plans_(plans) {}

Status ReplicaConnection::Open(const Layout& sender, Deadline deadline, std::stop_token stop) {
  if (is_open() && inbox_->Quiet()) return OkStatus();
  Close();
  const Deadline soon = std::min(deadline, Deadline::After(*options_.clock, options_.connect_timeout));
  Status status = Connect(sender, soon, std::move(stop));
  if (!status.ok()) Close();
  return status;
}

Status ReplicaConnection::Connect(const Layout& sender, Deadline deadline, std::stop_token stop) {
  Enter(SendPhase::kConnect);
  ASSIGN_OR_RETURN(std::unique_ptr<ControlChannel> channel, options_.control->Dial(options_.address, deadline));
  inbox_ = std::make_unique<ControlInbox>(std::move(channel), *options_.clock);

  Enter(SendPhase::kHello);
  ASSIGN_OR_RETURN(HelloReply reply, ExchangeHello(sender, deadline, stop));
  engine_ = reply.engine;
  live_ = reply.live;
  kept_ = reply.kept;
  highest_number_ = reply.highest_number;
  connection_ = reply.connection;
  credits_ = std::min({options_.credits, reply.max_credits, kMaxCredits});

  Enter(SendPhase::kPlan);
  for (TransportEndpoint& endpoint : reply.endpoints) endpoint = SeenFrom(options_.address, std::move(endpoint));
  RETURN_IF_ERROR(ChooseTransport(reply.endpoints));
  ASSIGN_OR_RETURN(plan_, plans_.PlanFor(sender, reply.engine_layout, options_.plan));
  if (options_.team != nullptr) RETURN_IF_ERROR(AgreeWithTeam(reply, deadline, stop));
  frame_bytes_ = MaxFrameBytes(*plan_);
  if (frame_bytes_ <= kMaxFrameBytes) return OkStatus();
  return Status::InvalidArgument("bad_options", fmt::format("bucket_bytes={} gives frames of {}, at most {} go",
                                                            options_.plan.bucket_bytes, frame_bytes_, kMaxFrameBytes));
}

Result<HelloReply> ReplicaConnection::ExchangeHello(const Layout& sender, Deadline deadline, std::stop_token stop) {
  RETURN_IF_ERROR(inbox_->Send(Hello{.publisher = options_.publisher,
                                     .model = options_.model,
                                     .sender_layout = sender,
                                     .plan_options = options_.plan}));
  ASSIGN_OR_RETURN(std::optional<SessionMessage> answer, inbox_->Next(deadline, std::move(stop)));
  auto* reply = std::get_if<HelloReply>(&*answer);
  if (reply == nullptr) return Unexpected(*answer);
  if (reply->wire_version != kWireVersion) {
    return Status::FailedPrecondition("wire_version",
                                      fmt::format("engine={} publisher={}", reply->wire_version, kWireVersion));
  }
  if (reply->max_credits < 1) {
    return Status::DataLoss("bad_message", fmt::format("the engine grants {} credits", reply->max_credits));
  }
  return std::move(*reply);
}

Status ReplicaConnection::AgreeWithTeam(const HelloReply& reply, Deadline deadline, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const std::vector<TransportEndpoint> usable,
                   options_.team->Agree({.replica = options_.address,
                                         .connection = reply.connection,
                                         .engine_layout = reply.engine_layout,
                                         .plan_options = options_.plan,
                                         .plan = *plan_},
                                        reply.endpoints, deadline, stop));
  return ChooseTransport(usable);
}

std::optional<ReplicaConnection::Way> ReplicaConnection::FindAmong(const std::vector<TransportDialer*>& dialers,
                                                                   bool also_avoided) const {
  for (TransportDialer* const dialer : dialers) {
    for (const TransportEndpoint& endpoint : offered_) {
      if (endpoint.kind != dialer->kind() || !dialer->CanReach(endpoint)) continue;
      if (also_avoided || !dialer->Avoids(endpoint)) return Way{dialer, endpoint};
    }
  }
  return std::nullopt;
}

std::optional<ReplicaConnection::Way> ReplicaConnection::FindWay() const {
  std::optional<Way> way = FindAmong(options_.transports, /*also_avoided=*/false);
  // Only where the one that was asked for is there, and has failed.
  if (!way && FindAmong(options_.transports, /*also_avoided=*/true)) way = FindAmong(options_.fallbacks, false);
  return way;
}

bool ReplicaConnection::HasOtherWay() const {
  return dialer_ != nullptr && dialer_->Avoids(endpoint_) && FindWay().has_value();
}

Status ReplicaConnection::ChooseTransport(std::vector<TransportEndpoint> endpoints) {
  offered_ = std::move(endpoints);
  std::optional<Way> way = FindWay();
  if (!way) way = FindAmong(options_.transports, /*also_avoided=*/true);
  if (way) {
    dialer_ = way->dialer;
    endpoint_ = way->endpoint;
    return OkStatus();
  }
  std::string offered;
  for (const TransportEndpoint& endpoint : offered_) {
    offered += fmt::format(" {}:{}", TransportName(endpoint.kind), endpoint.address);
  }
  std::string here;
  for (const TransportDialer* dialer : options_.transports) {
    const Device* const device = dialer->device();
    here += fmt::format("{}{}{}", here.empty() ? "" : ", ", TransportName(dialer->kind()),
                        device == nullptr ? "" : " from " + device->description().uuid.ToString());
  }
  return Status::Unimplemented("transport_unavailable",
                               fmt::format("the engine offers{}; none can be used from here by {}",
                                           offered.empty() ? " none" : offered, here.empty() ? "any" : here));
}

std::unique_ptr<TeamSession> ReplicaConnection::BeginTeamSession(SessionId session, Deadline deadline) {
  if (options_.team == nullptr) return nullptr;
  return options_.team->Begin(*plan_,
                              {.session = session,
                               .connection = connection_,
                               .endpoint = endpoint_,
                               .frame_bytes = frame_bytes_,
                               .credits = credits_,
                               .deadline = deadline},
                              [this] { inbox_->Wake(); });
}

Status ReplicaConnection::OpenRoutes(const WeightSource& source, Deadline deadline) {
  if (routes_.size() == plan_->routes.size()) return OkStatus();
  casts_ = {};
  routes_.clear();
  for (const Route& route : plan_->routes) {
    if (!source.Holds(route.sender_rank)) {
      routes_.push_back(nullptr);
      continue;
    }
    const Deadline soon = std::min(deadline, Deadline::After(*options_.clock, options_.connect_timeout));
    ASSIGN_OR_RETURN(
        std::unique_ptr<BucketSender> sender,
        dialer_->Dial(endpoint_,
                      {.connection = connection_, .route = route, .frame_bytes = frame_bytes_, .credits = credits_},
                      soon));
    routes_.push_back(std::move(sender));
  }
  ASSIGN_OR_RETURN(casts_, CastSet::Make(*plan_, routes_, *dialer_));
  return OkStatus();
}

void ReplicaConnection::Close() {
  // The control channel first: an engine that sees a route end before it has read why takes the publisher for dead.
  inbox_.reset();
  casts_ = {};
  routes_.clear();
}

void ReplicaConnection::NoteCommitted(const WeightVersion& version) {
  highest_number_ = version.run == live_.run ? std::max(highest_number_, version.number) : version.number;
  kept_ = std::exchange(live_, version);
}

void ReplicaConnection::NoteFailure(const Status& why) {
  if (dialer_ != nullptr) dialer_->NoteFailure(endpoint_, why);
}

Status ReplicaConnection::Failure(const Status& why) const {
  return why.WithContext(fmt::format("replica {}, {}", options_.address, SendPhaseName(phase_)));
}

Status Unexpected(const SessionMessage& message) {
  const auto* abort = std::get_if<Abort>(&message);
  if (abort != nullptr && !abort->why.ok()) return abort->why.WithContext("the engine says");
  return Status::InvalidArgument("unexpected_message", fmt::format("{} has no place here", MessageName(message)));
}

}  // namespace bascule
