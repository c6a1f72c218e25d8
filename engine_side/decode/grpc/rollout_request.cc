#include "bascule/v1/rollout.pb.h"
#include "engine_side/decode/grpc/rollout_request_internal.h"

namespace bascule {
namespace {

constexpr std::int64_t kMaxTimeLimitMs = std::int64_t{366} * 24 * 3600 * 1000;

}  // namespace

Result<GenerateRequest> RequestOf(const v1::GenerateRequest& in, const std::string& peer) {
  GenerateRequest request;
  request.prompt.assign(in.prompt().begin(), in.prompt().end());
  request.max_new_tokens = in.max_new_tokens();
  request.temperature = in.temperature();
  request.seed = in.seed();
  request.stop.assign(in.stop().begin(), in.stop().end());
  request.top_k = in.top_k();
  if (in.has_top_p()) request.top_p = in.top_p();
  request.min_new_tokens = in.min_new_tokens();
  request.sample = in.sample();
  if (!in.kv_policy().empty()) {
    ASSIGN_OR_RETURN(request.kv_policy, ParseKvPolicy(in.kv_policy()));
  }
  if (in.has_max_staleness()) request.max_staleness = in.max_staleness();
  request.min_start_version = in.min_start_version();
  if (in.time_limit_ms() < 0 || in.time_limit_ms() > kMaxTimeLimitMs) {
    return Status::InvalidArgument("bad_request", fmt::format("time_limit_ms={}", in.time_limit_ms()));
  }
  request.time_limit = std::chrono::milliseconds(in.time_limit_ms());
  request.top_logprobs = in.top_logprobs();
  request.prompt_logprobs = in.prompt_logprobs();
  request.client = in.client().empty() ? peer.substr(0, kMaxClientBytes) : in.client();
  return request;
}

}  // namespace bascule
