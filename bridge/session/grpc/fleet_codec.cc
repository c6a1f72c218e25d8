#include <algorithm>
#include <span>
#include <utility>

#include "base/error_text.h"
#include "bridge/session/grpc/fleet_codec_internal.h"
#include "bridge/session/grpc/session_parts_codec_internal.h"

namespace bascule {
namespace {

constexpr std::size_t kMaxAddressBytes = 1024;
constexpr std::size_t kMaxTextBytes = kMaxErrorTextBytes;
constexpr int kMaxHolders = 64;
// A member asks neither in a loop nor so seldom that it is taken for lost.
constexpr Duration kShortestHeartbeat = std::chrono::milliseconds(50);
constexpr Duration kLongestHeartbeat = std::chrono::minutes(1);

Status Bad(const std::string& what) { return Status::DataLoss("bad_message", what); }

}  // namespace

void ToProto(const WeightVersion& version, v1::VersionId& out) {
  out.set_run(version.run);
  out.set_number(version.number);
  if (!version.digest.IsZero()) out.set_digest(version.digest.bytes.data(), version.digest.bytes.size());
}

Result<WeightVersion> FromProto(const v1::VersionId& proto) {
  WeightVersion version{.run = proto.run(), .number = proto.number(), .digest = {}};
  if (version.run.empty() || version.run.size() > kMaxRunBytes) return Bad("version.run");
  if (proto.digest().empty()) return version;
  if (proto.digest().size() != version.digest.bytes.size()) return Bad("version.digest");
  std::ranges::copy(std::as_bytes(std::span(proto.digest())), version.digest.bytes.begin());
  return version;
}

v1::JoinRequest ToProto(const FleetHeartbeat& heartbeat) {
  v1::JoinRequest proto;
  proto.set_address(heartbeat.address);
  proto.set_instance(heartbeat.instance.value);
  if (!heartbeat.live.run.empty()) ToProto(heartbeat.live, *proto.mutable_live());
  proto.set_ready(heartbeat.ready);
  if (heartbeat.last_error.ok()) return proto;
  proto.mutable_last_error()->set_code(std::string(StatusCodeName(heartbeat.last_error.code())));
  proto.mutable_last_error()->set_reason(heartbeat.last_error.reason());
  proto.mutable_last_error()->set_message(std::string(BeginningOf(heartbeat.last_error.message(), kMaxTextBytes / 2)));
  return proto;
}

Result<FleetHeartbeat> FromProto(const v1::JoinRequest& proto) {
  FleetHeartbeat heartbeat{.address = proto.address(), .instance = {proto.instance()}, .ready = proto.ready()};
  if (heartbeat.address.size() > kMaxAddressBytes) return Bad("join.address");
  if (proto.has_live()) {
    ASSIGN_OR_RETURN(heartbeat.live, FromProto(proto.live()));
  }
  if (proto.has_last_error()) {
    const v1::Failure& failure = proto.last_error();
    if (failure.ByteSizeLong() > kMaxTextBytes) return Bad("join.last_error");
    RETURN_IF_ERROR(
        FailureFromProto("join.last_error", failure.code(), failure.reason(), failure.message(), heartbeat.last_error));
  }
  return heartbeat;
}

void ToProto(const FleetWelcome& welcome, v1::JoinResponse& out) {
  if (welcome.required) ToProto(*welcome.required, *out.mutable_required());
  for (const std::string& holder : welcome.holders) out.add_holders(holder);
  out.set_publisher_sends(welcome.publisher_sends);
  out.set_heartbeat_us(MicrosecondsOf(welcome.heartbeat));
}

Result<FleetWelcome> FromProto(const v1::JoinResponse& proto) {
  FleetWelcome welcome;
  if (proto.has_required()) {
    ASSIGN_OR_RETURN(welcome.required, FromProto(proto.required()));
  }
  if (proto.holders_size() > kMaxHolders) return Bad("join.holders");
  for (const std::string& holder : proto.holders()) {
    if (holder.size() > kMaxAddressBytes) return Bad("join.holders");
    welcome.holders.push_back(holder);
  }
  welcome.publisher_sends = proto.publisher_sends();
  constexpr auto kLongest = std::chrono::duration_cast<std::chrono::microseconds>(kLongestHeartbeat);
  const std::chrono::microseconds heartbeat(std::clamp<std::int64_t>(proto.heartbeat_us(), 0, kLongest.count()));
  welcome.heartbeat = std::max<Duration>(heartbeat, kShortestHeartbeat);
  return welcome;
}

}  // namespace bascule
