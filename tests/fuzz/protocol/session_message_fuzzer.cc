// What publishers, receivers and the ranks of a trainer say, as bytes from anywhere: whatever decodes says the same
// when it is encoded and decoded again, and what checks layouts and offers copes with it.
#include <cstdint>
#include <string_view>
#include <variant>

#include "base/grpc/grpc_log_internal.h"
#include "base/log.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "bridge/session/grpc/session_codec.h"

namespace bascule {
namespace {

void Check(const Layout& layout) {
  if (CheckLayout(layout).ok()) CHECK(!LayoutDigest(layout).IsZero());
}

void Run(std::string_view bytes) {
  const Result<SessionMessage> message = DecodeSessionMessage(bytes);
  if (!message.ok()) {
    CHECK(message.status().reason() == "bad_message");
    return;
  }
  const std::string encoded = EncodeSessionMessage(*message);
  const Result<SessionMessage> again = DecodeSessionMessage(encoded);
  CHECK(again.ok() && again->index() == message->index());
  CHECK(EncodeSessionMessage(*again) == encoded);
  if (const auto* hello = std::get_if<Hello>(&*message)) Check(hello->sender_layout);
  if (const auto* reply = std::get_if<HelloReply>(&*message)) Check(reply->engine_layout);
  if (const auto* join = std::get_if<GroupJoin>(&*message)) Check(join->part);
  if (const auto* offer = std::get_if<Offer>(&*message)) (void)CheckOffer(offer->manifest);
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
  bascule::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
