// Requests for tokens from anywhere: what passes both checks stays within what an engine has.
#include <algorithm>
#include <cstdint>

#include "bascule/v1/rollout.pb.h"
#include "base/grpc/grpc_log_internal.h"
#include "base/log.h"
#include "engine_side/decode/grpc/rollout_request_internal.h"
#include "engine_side/decode/request_check.h"

namespace bascule {
namespace {

constexpr std::int64_t kVocabulary = 1000;
constexpr std::int64_t kPositions = 512;

void Run(const std::uint8_t* data, std::size_t size) {
  v1::GenerateRequest message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return;
  const Result<GenerateRequest> request = RequestOf(message, "peer");
  if (!request.ok() || !CheckRequest(*request, kVocabulary, kPositions).ok()) return;
  CHECK(!request->prompt.empty() && request->max_new_tokens >= 1);
  CHECK(static_cast<std::int64_t>(request->prompt.size()) + request->max_new_tokens <= kPositions);
  CHECK(std::all_of(request->prompt.begin(), request->prompt.end(),
                    [](std::int32_t token) { return token >= 0 && token < kVocabulary; }));
  CHECK(request->temperature >= 0 && request->time_limit >= Duration::zero());
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
  bascule::Run(data, size);
  return 0;
}
