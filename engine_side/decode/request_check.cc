#include "engine_side/decode/request_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

namespace bascule {
namespace {

Status Bad(std::string what) { return Status::InvalidArgument("bad_request", std::move(what)); }

Status CheckLengths(const GenerateRequest& request, std::int64_t max_positions) {
  if (request.prompt.empty()) return Bad("the prompt is empty");
  if (request.max_new_tokens < 1) return Bad(fmt::format("max_new_tokens={} want=1..", request.max_new_tokens));
  const std::int64_t most = std::ssize(request.prompt) + request.max_new_tokens;
  if (most > max_positions) {
    return Bad(fmt::format("prompt={} max_new_tokens={} but the model has {} positions", request.prompt.size(),
                           request.max_new_tokens, max_positions));
  }
  if (request.min_new_tokens < 0 || request.min_new_tokens > request.max_new_tokens) {
    return Bad(fmt::format("min_new_tokens={} want=0..{}", request.min_new_tokens, request.max_new_tokens));
  }
  if (request.time_limit < Duration::zero()) return Bad("time_limit is negative");
  if (request.client.size() > kMaxClientBytes) {
    return Bad(fmt::format("client has {} bytes, want at most {}", request.client.size(), kMaxClientBytes));
  }
  return OkStatus();
}

Status CheckSampling(const GenerateRequest& request, std::int64_t vocabulary) {
  if (!std::isfinite(request.temperature) || request.temperature < 0) {
    return Bad(fmt::format("temperature={} want a finite number >= 0", request.temperature));
  }
  if (request.top_k < 0) return Bad(fmt::format("top_k={} want=0..", request.top_k));
  if (!(request.top_p > 0 && request.top_p <= 1))
    return Bad(fmt::format("top_p={} want more than 0, at most 1", request.top_p));
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs) {
    return Bad(fmt::format("top_logprobs={} want=0..{}", request.top_logprobs, kMaxTopLogprobs));
  }
  const std::set<std::int32_t> stop(request.stop.begin(), request.stop.end());
  const auto inside = std::ranges::count_if(stop, [&](std::int32_t id) { return id >= 0 && id < vocabulary; });
  if (request.min_new_tokens > 0 && inside == vocabulary) return Bad("every token stops, and min_new_tokens bars them");
  return OkStatus();
}

}  // namespace

Status CheckRequest(const GenerateRequest& request, std::int64_t vocabulary, std::int64_t max_positions) {
  RETURN_IF_ERROR(CheckLengths(request, max_positions));
  for (const std::int32_t token : request.prompt) {
    if (token < 0 || token >= vocabulary) {
      return Bad(fmt::format("prompt token {} is outside the vocabulary of {}", token, vocabulary));
    }
  }
  return CheckSampling(request, vocabulary);
}

}  // namespace bascule
