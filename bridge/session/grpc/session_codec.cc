#include "bridge/session/grpc/session_codec.h"

#include <array>
#include <cmath>
#include <utility>

#include "bascule/v1/session.pb.h"
#include "bridge/session/grpc/layout_codec_internal.h"

namespace bascule {
namespace {

constexpr std::int64_t kMaxTimeLeftUs = std::int64_t{366} * 24 * 3600 * 1'000'000;

constexpr std::array kTransports = {
    std::pair{TransportKind::kLoopback, v1::TRANSPORT_LOOPBACK},
    std::pair{TransportKind::kShm, v1::TRANSPORT_SHM},
    std::pair{TransportKind::kGrpc, v1::TRANSPORT_GRPC},
};

v1::Transport ToProto(TransportKind kind) {
  for (const auto& [ours, theirs] : kTransports) {
    if (ours == kind) return theirs;
  }
  return v1::TRANSPORT_UNSPECIFIED;
}

Result<TransportKind> TransportFromProto(std::string_view field, v1::Transport transport) {
  for (const auto& [ours, theirs] : kTransports) {
    if (theirs == transport) return ours;
  }
  return BadMessage(field, fmt::format("unknown transport {}", static_cast<int>(transport)));
}

Result<double> TimeFromProto(std::string_view field, double value) {
  if (!std::isfinite(value) || value < 0) return BadMessage(field, "no duration");
  return value;
}

// One overload each way for each message.

void Encode(const Hello& hello, v1::SessionMessage& message) {
  v1::Hello* proto = message.mutable_hello();
  proto->set_wire_version(hello.wire_version);
  proto->set_publisher(hello.publisher.value);
  proto->set_model(hello.model);
  ToProto(hello.sender_layout, proto->mutable_sender_layout());
  proto->mutable_plan_options()->set_bucket_bytes(hello.plan_options.bucket_bytes);
  for (const std::string& pattern : hello.plan_options.ignore) proto->mutable_plan_options()->add_ignore(pattern);
}

Result<SessionMessage> Decode(const v1::Hello& proto) {
  Hello hello;
  hello.wire_version = proto.wire_version();
  hello.publisher.value = proto.publisher();
  hello.model = proto.model();
  ASSIGN_OR_RETURN(hello.sender_layout, FromProto(proto.sender_layout()));
  hello.plan_options.bucket_bytes = proto.plan_options().bucket_bytes();
  hello.plan_options.ignore.assign(proto.plan_options().ignore().begin(), proto.plan_options().ignore().end());
  return SessionMessage(std::move(hello));
}

void Encode(const HelloReply& reply, v1::SessionMessage& message) {
  v1::HelloReply* proto = message.mutable_hello_reply();
  proto->set_wire_version(reply.wire_version);
  proto->set_engine(reply.engine.value);
  proto->set_model(reply.model);
  ToProto(reply.engine_layout, proto->mutable_engine_layout());
  ToProto(reply.live, proto->mutable_live());
  proto->set_highest_number(reply.highest_number);
  for (const TransportEndpoint& endpoint : reply.endpoints) {
    v1::Endpoint* endpoint_proto = proto->add_endpoints();
    endpoint_proto->set_kind(ToProto(endpoint.kind));
    endpoint_proto->set_address(endpoint.address);
  }
  proto->set_connection(reply.connection);
  proto->set_max_credits(reply.max_credits);
}

Result<SessionMessage> Decode(const v1::HelloReply& proto) {
  HelloReply reply;
  reply.wire_version = proto.wire_version();
  reply.engine.value = proto.engine();
  reply.model = proto.model();
  ASSIGN_OR_RETURN(reply.engine_layout, FromProto(proto.engine_layout()));
  ASSIGN_OR_RETURN(reply.live, FromProto(proto.live()));
  reply.highest_number = proto.highest_number();
  for (const v1::Endpoint& endpoint : proto.endpoints()) {
    ASSIGN_OR_RETURN(const TransportKind kind, TransportFromProto("reply.endpoints", endpoint.kind()));
    reply.endpoints.push_back({kind, endpoint.address()});
  }
  reply.connection = proto.connection();
  reply.max_credits = proto.max_credits();
  return SessionMessage(std::move(reply));
}

void Encode(const Offer& offer, v1::SessionMessage& message) {
  v1::Offer* proto = message.mutable_offer();
  proto->set_session(offer.session.value);
  proto->set_term(offer.term);
  proto->set_take_over(offer.take_over);
  ToProto(offer.manifest, proto->mutable_manifest());
  proto->set_plan_digest(ToProto(offer.plan_digest));
  proto->set_transport(ToProto(offer.transport));
  proto->set_frame_bytes(offer.frame_bytes);
  proto->set_credits(offer.credits);
  proto->set_time_left_us(std::chrono::duration_cast<std::chrono::microseconds>(offer.time_left).count());
}

Result<SessionMessage> Decode(const v1::Offer& proto) {
  Offer offer;
  offer.session.value = proto.session();
  offer.term = proto.term();
  offer.take_over = proto.take_over();
  ASSIGN_OR_RETURN(offer.manifest, FromProto(proto.manifest()));
  ASSIGN_OR_RETURN(offer.plan_digest, HashFromProto("offer.plan_digest", proto.plan_digest()));
  ASSIGN_OR_RETURN(offer.transport, TransportFromProto("offer.transport", proto.transport()));
  offer.frame_bytes = proto.frame_bytes();
  offer.credits = proto.credits();
  if (proto.time_left_us() < 0 || proto.time_left_us() > kMaxTimeLeftUs) {
    return BadMessage("offer.time_left_us", fmt::format("{} is outside [0, {}]", proto.time_left_us(), kMaxTimeLeftUs));
  }
  offer.time_left = std::chrono::microseconds(proto.time_left_us());
  return SessionMessage(std::move(offer));
}

void Encode(const Accept& accept, v1::SessionMessage& message) {
  message.mutable_accept()->set_session(accept.session.value);
}

Result<SessionMessage> Decode(const v1::Accept& proto) { return SessionMessage(Accept{SessionId{proto.session()}}); }

void Encode(const Seal& seal, v1::SessionMessage& message) {
  message.mutable_seal()->set_session(seal.session.value);
  ToProto(seal.manifest, message.mutable_seal()->mutable_manifest());
}

Result<SessionMessage> Decode(const v1::Seal& proto) {
  ASSIGN_OR_RETURN(ManifestSeal manifest, FromProto(proto.manifest()));
  return SessionMessage(Seal{SessionId{proto.session()}, std::move(manifest)});
}

void Encode(const Missing& missing, v1::SessionMessage& message) {
  message.mutable_missing()->set_session(missing.session.value);
  message.mutable_missing()->mutable_buckets()->Add(missing.buckets.begin(), missing.buckets.end());
}

Result<SessionMessage> Decode(const v1::Missing& proto) {
  return SessionMessage(Missing{SessionId{proto.session()}, {proto.buckets().begin(), proto.buckets().end()}});
}

void Encode(const Ready& ready, v1::SessionMessage& message) {
  v1::Ready* proto = message.mutable_ready();
  proto->set_session(ready.session.value);
  proto->set_stage_ms(ready.stage_ms);
  proto->set_verify_ms(ready.verify_ms);
}

Result<SessionMessage> Decode(const v1::Ready& proto) {
  ASSIGN_OR_RETURN(const double stage_ms, TimeFromProto("ready.stage_ms", proto.stage_ms()));
  ASSIGN_OR_RETURN(const double verify_ms, TimeFromProto("ready.verify_ms", proto.verify_ms()));
  return SessionMessage(Ready{SessionId{proto.session()}, stage_ms, verify_ms});
}

void Encode(const Flip& flip, v1::SessionMessage& message) {
  message.mutable_flip()->set_session(flip.session.value);
  message.mutable_flip()->set_at_step(flip.at_step);
}

Result<SessionMessage> Decode(const v1::Flip& proto) {
  return SessionMessage(Flip{SessionId{proto.session()}, proto.at_step()});
}

void Encode(const Committed& committed, v1::SessionMessage& message) {
  v1::Committed* proto = message.mutable_committed();
  proto->set_session(committed.session.value);
  const FlipReport& report = committed.report;
  ToProto(report.version, proto->mutable_report()->mutable_version());
  proto->mutable_report()->set_step(report.step);
  proto->mutable_report()->set_flip_stall_us(report.flip_stall_us);
  v1::KvReport* kv = proto->mutable_report()->mutable_kv();
  kv->set_recomputed(report.kv.recomputed);
  kv->set_drained(report.kv.drained);
  kv->set_kept(report.kv.kept);
  kv->set_aborted(report.kv.aborted);
  kv->set_recompute_tokens(report.kv.recompute_tokens);
}

Result<SessionMessage> Decode(const v1::Committed& proto) {
  Committed committed{SessionId{proto.session()}, {}};
  FlipReport& report = committed.report;
  ASSIGN_OR_RETURN(report.version, FromProto(proto.report().version()));
  report.step = proto.report().step();
  ASSIGN_OR_RETURN(report.flip_stall_us, TimeFromProto("report.flip_stall_us", proto.report().flip_stall_us()));
  const v1::KvReport& kv = proto.report().kv();
  report.kv = {kv.recomputed(), kv.drained(), kv.kept(), kv.aborted(), kv.recompute_tokens()};
  return SessionMessage(std::move(committed));
}

void Encode(const Abort& abort, v1::SessionMessage& message) {
  v1::Abort* proto = message.mutable_abort();
  proto->set_session(abort.session.value);
  proto->set_code(std::string(StatusCodeName(abort.why.code())));
  proto->set_reason(abort.why.reason());
  proto->set_message(abort.why.message());
}

Result<SessionMessage> Decode(const v1::Abort& proto) {
  for (int code = 1; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    const auto known = static_cast<StatusCode>(code);
    if (StatusCodeName(known) != proto.code()) continue;
    return SessionMessage(Abort{SessionId{proto.session()}, Status(known, proto.reason(), proto.message())});
  }
  return BadMessage("abort.code", "unknown");
}

}  // namespace

std::string EncodeSessionMessage(const SessionMessage& message) {
  v1::SessionMessage proto;
  std::visit([&](const auto& one) { Encode(one, proto); }, message);
  return proto.SerializeAsString();
}

Result<SessionMessage> DecodeSessionMessage(std::string_view bytes) {
  if (bytes.size() > kMaxSessionMessageBytes) return BadMessage("message", fmt::format("{} bytes", bytes.size()));
  v1::SessionMessage proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return BadMessage("message", "not protobuf");
  switch (proto.body_case()) {
    case v1::SessionMessage::kHello:
      return Decode(proto.hello());
    case v1::SessionMessage::kHelloReply:
      return Decode(proto.hello_reply());
    case v1::SessionMessage::kOffer:
      return Decode(proto.offer());
    case v1::SessionMessage::kAccept:
      return Decode(proto.accept());
    case v1::SessionMessage::kSeal:
      return Decode(proto.seal());
    case v1::SessionMessage::kMissing:
      return Decode(proto.missing());
    case v1::SessionMessage::kReady:
      return Decode(proto.ready());
    case v1::SessionMessage::kFlip:
      return Decode(proto.flip());
    case v1::SessionMessage::kCommitted:
      return Decode(proto.committed());
    case v1::SessionMessage::kAbort:
      return Decode(proto.abort());
    case v1::SessionMessage::BODY_NOT_SET:
      break;
  }
  return BadMessage("message", "of no kind that is known");
}

}  // namespace bascule
