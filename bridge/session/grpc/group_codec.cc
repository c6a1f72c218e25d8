#include <utility>

#include "bridge/session/grpc/group_codec_internal.h"
#include "bridge/session/grpc/layout_codec_internal.h"
#include "bridge/session/grpc/session_parts_codec_internal.h"

namespace bascule {
namespace {

void ToProto(const Status& failure, v1::Error* proto) {
  proto->set_code(std::string(StatusCodeName(failure.code())));
  proto->set_reason(failure.reason());
  proto->set_message(failure.message());
}

Status StatusFromProto(std::string_view field, const v1::Error& proto, Status& failure) {
  return FailureFromProto(field, proto.code(), proto.reason(), proto.message(), failure);
}

void ToProto(const ReplicaOutcome& outcome, v1::ReplicaOutcome* proto) {
  proto->set_address(outcome.address);
  if (!outcome.status.ok()) ToProto(outcome.status, proto->mutable_failure());
  proto->set_phase(outcome.phase);
  proto->set_transport(ToProto(outcome.transport));
  proto->set_stage_ms(outcome.stage_ms);
  proto->set_verify_ms(outcome.verify_ms);
  ToProto(outcome.flip, proto->mutable_flip());
}

Result<ReplicaOutcome> OutcomeFromProto(const v1::ReplicaOutcome& proto) {
  ReplicaOutcome outcome;
  outcome.address = proto.address();
  if (proto.has_failure()) {
    RETURN_IF_ERROR(StatusFromProto("outcome.failure", proto.failure(), outcome.status));
  }
  outcome.phase = proto.phase();
  ASSIGN_OR_RETURN(outcome.transport, TransportFromProto("outcome.transport", proto.transport()));
  ASSIGN_OR_RETURN(outcome.stage_ms, TimeFromProto("outcome.stage_ms", proto.stage_ms()));
  ASSIGN_OR_RETURN(outcome.verify_ms, TimeFromProto("outcome.verify_ms", proto.verify_ms()));
  ASSIGN_OR_RETURN(outcome.flip, FromProto(proto.flip()));
  return outcome;
}

Result<std::int64_t> BytesFromProto(std::string_view field, std::int64_t bytes) {
  if (bytes < 0) return BadMessage(field, fmt::format("{} bytes", bytes));
  return bytes;
}

}  // namespace

void Encode(const GroupJoin& join, v1::SessionMessage& message) {
  v1::GroupJoin* proto = message.mutable_group_join();
  proto->set_wire_version(join.wire_version);
  proto->set_group(join.group);
  proto->set_rank(join.rank);
  proto->set_world_size(join.world_size);
  proto->set_instance(join.instance.value);
  ToProto(join.part, proto->mutable_part());
}

Result<SessionMessage> Decode(const v1::GroupJoin& proto) {
  GroupJoin join{.wire_version = proto.wire_version(),
                 .group = proto.group(),
                 .rank = proto.rank(),
                 .world_size = proto.world_size(),
                 .instance = InstanceId{proto.instance()},
                 .part = {}};
  if (join.rank < 0 || join.world_size < 1) {
    return BadMessage("join.rank", fmt::format("{} of {}", join.rank, join.world_size));
  }
  ASSIGN_OR_RETURN(join.part, FromProto(proto.part()));
  return SessionMessage(std::move(join));
}

void Encode(const GroupWelcome& welcome, v1::SessionMessage& message) {
  message.mutable_group_welcome()->set_leader(welcome.leader.value);
  message.mutable_group_welcome()->set_round(welcome.round);
}

Result<SessionMessage> Decode(const v1::GroupWelcome& proto) {
  return SessionMessage(GroupWelcome{InstanceId{proto.leader()}, proto.round()});
}

void Encode(const GroupEnter& enter, v1::SessionMessage& message) {
  message.mutable_group_enter()->set_round(enter.round);
  if (enter.number) message.mutable_group_enter()->set_number(*enter.number);
  message.mutable_group_enter()->set_sends_again(enter.sends_again);
}

Result<SessionMessage> Decode(const v1::GroupEnter& proto) {
  GroupEnter enter{.round = proto.round(), .number = {}, .sends_again = proto.sends_again()};
  if (proto.has_number()) enter.number = proto.number();
  return SessionMessage(enter);
}

void Encode(const GroupLayout& layout, v1::SessionMessage& message) {
  ToProto(layout.layout, message.mutable_group_layout()->mutable_layout());
}

Result<SessionMessage> Decode(const v1::GroupLayout& proto) {
  ASSIGN_OR_RETURN(Layout layout, FromProto(proto.layout()));
  return SessionMessage(GroupLayout{std::move(layout)});
}

void Encode(const GroupPlan& plan, v1::SessionMessage& message) {
  v1::GroupPlan* proto = message.mutable_group_plan();
  proto->set_replica(plan.replica);
  proto->set_connection(plan.connection);
  ToProto(plan.engine_layout, proto->mutable_engine_layout());
  ToProto(plan.plan_options, proto->mutable_plan_options());
  proto->set_plan_digest(ToProto(plan.plan_digest));
  for (const TransportEndpoint& endpoint : plan.endpoints) ToProto(endpoint, proto->add_endpoints());
}

Result<SessionMessage> Decode(const v1::GroupPlan& proto) {
  GroupPlan plan;
  plan.replica = proto.replica();
  plan.connection = proto.connection();
  ASSIGN_OR_RETURN(plan.engine_layout, FromProto(proto.engine_layout()));
  plan.plan_options = FromProto(proto.plan_options());
  ASSIGN_OR_RETURN(plan.plan_digest, HashFromProto("plan.plan_digest", proto.plan_digest()));
  for (const v1::Endpoint& endpoint : proto.endpoints()) {
    ASSIGN_OR_RETURN(TransportEndpoint offered, FromProto("plan.endpoints", endpoint));
    plan.endpoints.push_back(std::move(offered));
  }
  return SessionMessage(std::move(plan));
}

void Encode(const GroupPlanned& planned, v1::SessionMessage& message) {
  message.mutable_group_planned()->set_connection(planned.connection);
  for (const TransportKind kind : planned.transports) message.mutable_group_planned()->add_transports(ToProto(kind));
  if (!planned.status.ok()) ToProto(planned.status, message.mutable_group_planned()->mutable_failure());
}

Result<SessionMessage> Decode(const v1::GroupPlanned& proto) {
  GroupPlanned planned{.connection = proto.connection(), .status = {}, .transports = {}};
  if (proto.has_failure()) RETURN_IF_ERROR(StatusFromProto("planned.failure", proto.failure(), planned.status));
  for (const int transport : proto.transports()) {
    ASSIGN_OR_RETURN(const TransportKind kind,
                     TransportFromProto("planned.transports", static_cast<v1::Transport>(transport)));
    planned.transports.push_back(kind);
  }
  return SessionMessage(std::move(planned));
}

void Encode(const GroupSend& send, v1::SessionMessage& message) {
  v1::GroupSend* proto = message.mutable_group_send();
  proto->set_session(send.session.value);
  proto->set_connection(send.connection);
  ToProto(send.endpoint, proto->mutable_endpoint());
  proto->set_frame_bytes(send.frame_bytes);
  proto->set_credits(send.credits);
  proto->set_time_left_us(MicrosecondsOf(send.time_left));
  proto->set_on_request(send.on_request);
  proto->set_round(send.round);
}

Result<SessionMessage> Decode(const v1::GroupSend& proto) {
  GroupSend send;
  send.session.value = proto.session();
  send.connection = proto.connection();
  ASSIGN_OR_RETURN(send.endpoint, FromProto("send.endpoint", proto.endpoint()));
  send.frame_bytes = proto.frame_bytes();
  send.credits = proto.credits();
  ASSIGN_OR_RETURN(send.time_left, TimeLeftFromProto("send.time_left_us", proto.time_left_us()));
  send.on_request = proto.on_request();
  send.round = proto.round();
  return SessionMessage(std::move(send));
}

void Encode(const GroupFetch& fetch, v1::SessionMessage& message) {
  v1::GroupFetch* proto = message.mutable_group_fetch();
  proto->set_session(fetch.session.value);
  proto->set_first_bucket(fetch.first_bucket);
  proto->set_bucket_count(fetch.bucket_count);
}

Result<SessionMessage> Decode(const v1::GroupFetch& proto) {
  return SessionMessage(GroupFetch{SessionId{proto.session()}, proto.first_bucket(), proto.bucket_count()});
}

void Encode(const GroupSent& sent, v1::SessionMessage& message) {
  message.mutable_group_sent()->set_session(sent.session.value);
  for (const TensorDigest& digest : sent.totals) ToProto(digest, message.mutable_group_sent()->add_totals());
  message.mutable_group_sent()->set_wire_bytes(sent.wire_bytes);
}

Result<SessionMessage> Decode(const v1::GroupSent& proto) {
  GroupSent sent{.session = SessionId{proto.session()}, .totals = {}, .wire_bytes = 0};
  for (const v1::TensorDigest& lanes : proto.totals()) {
    ASSIGN_OR_RETURN(const TensorDigest digest, DigestFromProto("sent.totals", lanes));
    sent.totals.push_back(digest);
  }
  ASSIGN_OR_RETURN(sent.wire_bytes, BytesFromProto("sent.wire_bytes", proto.wire_bytes()));
  return SessionMessage(std::move(sent));
}

void Encode(const GroupAgain& again, v1::SessionMessage& message) {
  message.mutable_group_again()->set_round(again.round);
}

Result<SessionMessage> Decode(const v1::GroupAgain& proto) { return SessionMessage(GroupAgain{proto.round()}); }

void Encode(const GroupPacked& packed, v1::SessionMessage& message) {
  message.mutable_group_packed()->set_round(packed.round);
}

Result<SessionMessage> Decode(const v1::GroupPacked& proto) { return SessionMessage(GroupPacked{proto.round()}); }

void Encode(const GroupOutcome& outcome, v1::SessionMessage& message) {
  v1::GroupOutcome* proto = message.mutable_group_outcome();
  proto->set_round(outcome.round);
  ToProto(outcome.version, proto->mutable_version());
  proto->set_bytes(outcome.bytes);
  proto->set_wire_bytes(outcome.wire_bytes);
  for (const ReplicaOutcome& replica : outcome.replicas) ToProto(replica, proto->add_replicas());
}

Result<SessionMessage> Decode(const v1::GroupOutcome& proto) {
  GroupOutcome outcome;
  outcome.round = proto.round();
  ASSIGN_OR_RETURN(outcome.version, FromProto(proto.version()));
  ASSIGN_OR_RETURN(outcome.bytes, BytesFromProto("outcome.bytes", proto.bytes()));
  ASSIGN_OR_RETURN(outcome.wire_bytes, BytesFromProto("outcome.wire_bytes", proto.wire_bytes()));
  for (const v1::ReplicaOutcome& replica : proto.replicas()) {
    ASSIGN_OR_RETURN(ReplicaOutcome one, OutcomeFromProto(replica));
    outcome.replicas.push_back(std::move(one));
  }
  return SessionMessage(std::move(outcome));
}

}  // namespace bascule
