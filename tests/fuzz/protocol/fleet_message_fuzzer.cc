// What a fleet says from anywhere: what is read is within its bounds, and reads the same when it is written again.
#include <cstdint>

#include "base/grpc/grpc_log_internal.h"
#include "base/log.h"
#include "base/net_address.h"
#include "bridge/session/grpc/fleet_codec_internal.h"

namespace bascule {
namespace {

void Join(const std::uint8_t* data, std::size_t size) {
  v1::JoinRequest message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return;
  const Result<FleetHeartbeat> heartbeat = FromProto(message);
  if (!heartbeat.ok()) return;
  CHECK(heartbeat->live.run.size() <= kMaxRunBytes);
  if (const auto address = NetAddress::Parse(heartbeat->address); address.ok()) {
    CHECK(NetAddress::Parse(address->ToString())->ToString() == address->ToString());
  }
  const Result<FleetHeartbeat> again = FromProto(ToProto(*heartbeat));
  CHECK(again.ok() && again->address == heartbeat->address && again->instance == heartbeat->instance);
  CHECK(again->live == heartbeat->live && again->ready == heartbeat->ready);
  CHECK(again->last_error.reason() == heartbeat->last_error.reason());
}

void Welcome(const std::uint8_t* data, std::size_t size) {
  v1::JoinResponse message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return;
  const Result<FleetWelcome> welcome = FromProto(message);
  if (!welcome.ok()) return;
  CHECK(welcome->heartbeat > Duration::zero() && welcome->heartbeat <= std::chrono::minutes(1));
  v1::JoinResponse written;
  ToProto(*welcome, written);
  const Result<FleetWelcome> again = FromProto(written);
  CHECK(again.ok() && again->required == welcome->required && again->holders == welcome->holders);
  CHECK(again->publisher_sends == welcome->publisher_sends && again->heartbeat == welcome->heartbeat);
}

}  // namespace
}  // namespace bascule

// What protobuf has to say of each bad message would be most of the time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  bascule::RouteGrpcLog();
  bascule::SetLogLevel(bascule::LogLevel::kOff);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bascule::Join(data, size);
  bascule::Welcome(data, size);
  return 0;
}
