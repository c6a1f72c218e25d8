#include "bridge/session/grpc/session_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <utility>

#include "bascule/v1/session.pb.h"
#include "bridge/session/grpc/group_codec_internal.h"
#include "bridge/session/grpc/layout_codec_internal.h"
#include "bridge/session/grpc/message_parts_internal.h"
#include "bridge/session/grpc/session_parts_codec_internal.h"

namespace bascule {
namespace {

// One overload each way for each message.

void Encode(const Hello& hello, v1::SessionMessage& message) {
  v1::Hello* proto = message.mutable_hello();
  proto->set_wire_version(hello.wire_version);
  proto->set_publisher(hello.publisher.value);
  proto->set_model(hello.model);
  ToProto(hello.sender_layout, proto->mutable_sender_layout());
  ToProto(hello.plan_options, proto->mutable_plan_options());
}

Result<SessionMessage> Decode(const v1::Hello& proto) {
  Hello hello;
  hello.wire_version = proto.wire_version();
  hello.publisher.value = proto.publisher();
  hello.model = proto.model();
  ASSIGN_OR_RETURN(hello.sender_layout, FromProto(proto.sender_layout()));
  hello.plan_options = FromProto(proto.plan_options());
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
  for (const TransportEndpoint& endpoint : reply.endpoints) ToProto(endpoint, proto->add_endpoints());
  proto->set_connection(reply.connection);
  proto->set_max_credits(reply.max_credits);
  if (!reply.kept.run.empty()) ToProto(reply.kept, proto->mutable_kept());
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
    ASSIGN_OR_RETURN(TransportEndpoint offered, FromProto("reply.endpoints", endpoint));
    reply.endpoints.push_back(std::move(offered));
  }
  reply.connection = proto.connection();
  reply.max_credits = proto.max_credits();
  if (proto.has_kept()) {
    ASSIGN_OR_RETURN(reply.kept, FromProto(proto.kept()));
  }
  return SessionMessage(std::move(reply));
}

void Encode(const Offer& offer, v1::SessionMessage& message) {
  v1::Offer* proto = message.mutable_offer();
  proto->set_session(offer.session.value);
  proto->set_term(offer.term);
  proto->set_take_over(offer.take_over);
  proto->set_first(offer.first);
  ToProto(offer.manifest, proto->mutable_manifest());
  proto->set_plan_digest(ToProto(offer.plan_digest));
  proto->set_transport(ToProto(offer.transport));
  proto->set_frame_bytes(offer.frame_bytes);
  proto->set_credits(offer.credits);
  proto->set_time_left_us(MicrosecondsOf(offer.time_left));
}

Result<SessionMessage> Decode(const v1::Offer& proto) {
  Offer offer;
  offer.session.value = proto.session();
  offer.term = proto.term();
  offer.take_over = proto.take_over();
  offer.first = proto.first();
  ASSIGN_OR_RETURN(offer.manifest, FromProto(proto.manifest()));
  ASSIGN_OR_RETURN(offer.plan_digest, HashFromProto("offer.plan_digest", proto.plan_digest()));
  ASSIGN_OR_RETURN(offer.transport, TransportFromProto("offer.transport", proto.transport()));
  offer.frame_bytes = proto.frame_bytes();
  offer.credits = proto.credits();
  ASSIGN_OR_RETURN(offer.time_left, TimeLeftFromProto("offer.time_left_us", proto.time_left_us()));
  return SessionMessage(std::move(offer));
}

void Encode(const Accept& accept, v1::SessionMessage& message) {
  message.mutable_accept()->set_session(accept.session.value);
  for (const TensorDigest& digest : accept.base) ToProto(digest, message.mutable_accept()->add_base());
}

Result<SessionMessage> Decode(const v1::Accept& proto) {
  Accept accept{SessionId{proto.session()}};
  for (const v1::TensorDigest& lanes : proto.base()) {
    ASSIGN_OR_RETURN(const TensorDigest digest, DigestFromProto("accept.base", lanes));
    accept.base.push_back(digest);
  }
  return SessionMessage(std::move(accept));
}

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
  ToProto(committed.report, proto->mutable_report());
}

Result<SessionMessage> Decode(const v1::Committed& proto) {
  ASSIGN_OR_RETURN(FlipReport report, FromProto(proto.report()));
  return SessionMessage(Committed{SessionId{proto.session()}, std::move(report)});
}

void Encode(const Abort& abort, v1::SessionMessage& message) {
  v1::Abort* proto = message.mutable_abort();
  proto->set_session(abort.session.value);
  proto->set_code(std::string(StatusCodeName(abort.why.code())));
  proto->set_reason(abort.why.reason());
  proto->set_message(abort.why.message());
}

Result<SessionMessage> Decode(const v1::Abort& proto) {
  Abort abort{SessionId{proto.session()}, {}};
  RETURN_IF_ERROR(FailureFromProto("abort.code", proto.code(), proto.reason(), proto.message(), abort.why));
  return SessionMessage(std::move(abort));
}

void Encode(const Require& require, v1::SessionMessage& message) {
  ToProto(require.version, message.mutable_require()->mutable_version());
}

Result<SessionMessage> Decode(const v1::Require& proto) {
  ASSIGN_OR_RETURN(WeightVersion version, FromProto(proto.version()));
  return SessionMessage(Require{std::move(version)});
}

void Encode(const RollBack& roll_back, v1::SessionMessage& message) {
  v1::RollBack* proto = message.mutable_roll_back();
  ToProto(roll_back.from, proto->mutable_from());
  if (roll_back.to) proto->set_to(*roll_back.to);
  proto->set_time_left_us(MicrosecondsOf(roll_back.time_left));
  proto->set_refused(roll_back.refused);
  if (roll_back.why.ok()) return;
  proto->set_code(std::string(StatusCodeName(roll_back.why.code())));
  proto->set_reason(roll_back.why.reason());
  proto->set_message(roll_back.why.message());
}

Result<SessionMessage> Decode(const v1::RollBack& proto) {
  RollBack roll_back;
  ASSIGN_OR_RETURN(roll_back.from, FromProto(proto.from()));
  if (proto.has_to()) roll_back.to = proto.to();
  roll_back.refused = proto.refused();
  ASSIGN_OR_RETURN(roll_back.time_left, TimeLeftFromProto("roll_back.time_left_us", proto.time_left_us()));
  if (!proto.code().empty()) {
    RETURN_IF_ERROR(FailureFromProto("roll_back.code", proto.code(), proto.reason(), proto.message(), roll_back.why));
  }
  return SessionMessage(std::move(roll_back));
}

void Encode(const RolledBack& rolled_back, v1::SessionMessage& message) {
  ToProto(rolled_back.report, message.mutable_rolled_back()->mutable_report());
}

Result<SessionMessage> Decode(const v1::RolledBack& proto) {
  ASSIGN_OR_RETURN(FlipReport report, FromProto(proto.report()));
  return SessionMessage(RolledBack{std::move(report)});
}

}  // namespace

std::string EncodeSessionMessage(const SessionMessage& message) {
  v1::SessionMessage proto;
  std::visit([&](const auto& one) { Encode(one, proto); }, message);
  // Equal messages, equal bytes: the labels of an offer are a map, which has an order only where one is asked for.
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  CHECK(proto.SerializeToCodedStream(&coded));
  coded.Trim();
  return bytes;
}

Result<SessionMessage> DecodeSessionMessage(std::string_view bytes) {
  if (bytes.size() > kMaxSessionMessageBytes) return BadMessage("message", fmt::format("{} bytes", bytes.size()));
  if (!HasFewParts(*v1::SessionMessage::descriptor(), bytes, kMaxSessionMessageParts)) {
    return BadMessage("message", fmt::format("not protobuf, or of more than {} parts", kMaxSessionMessageParts));
  }
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
    case v1::SessionMessage::kRequire:
      return Decode(proto.require());
    case v1::SessionMessage::kRollBack:
      return Decode(proto.roll_back());
    case v1::SessionMessage::kRolledBack:
      return Decode(proto.rolled_back());
    case v1::SessionMessage::kGroupJoin:
      return Decode(proto.group_join());
    case v1::SessionMessage::kGroupWelcome:
      return Decode(proto.group_welcome());
    case v1::SessionMessage::kGroupEnter:
      return Decode(proto.group_enter());
    case v1::SessionMessage::kGroupLayout:
      return Decode(proto.group_layout());
    case v1::SessionMessage::kGroupPlan:
      return Decode(proto.group_plan());
    case v1::SessionMessage::kGroupPlanned:
      return Decode(proto.group_planned());
    case v1::SessionMessage::kGroupSend:
      return Decode(proto.group_send());
    case v1::SessionMessage::kGroupFetch:
      return Decode(proto.group_fetch());
    case v1::SessionMessage::kGroupSent:
      return Decode(proto.group_sent());
    case v1::SessionMessage::kGroupPacked:
      return Decode(proto.group_packed());
    case v1::SessionMessage::kGroupOutcome:
      return Decode(proto.group_outcome());
    case v1::SessionMessage::kGroupAgain:
      return Decode(proto.group_again());
    case v1::SessionMessage::BODY_NOT_SET:
      break;
  }
  return BadMessage("message", "of no kind that is known");
}

}  // namespace bascule
