// Names of policies and endings, as the program and the wire have them.
#include <utility>

#include "engine_side/decode/decode_engine.h"

namespace bascule {
namespace {

constexpr std::pair<KvPolicy, std::string_view> kKvPolicies[] = {{KvPolicy::kRecompute, "recompute"},
                                                                 {KvPolicy::kDrain, "drain"},
                                                                 {KvPolicy::kKeep, "keep"},
                                                                 {KvPolicy::kAbort, "abort"}};

}  // namespace

std::string_view KvPolicyName(KvPolicy policy) { return kKvPolicies[static_cast<std::size_t>(policy)].second; }

Result<KvPolicy> ParseKvPolicy(std::string_view name) {
  for (const auto& [policy, known] : kKvPolicies) {
    if (known == name) return policy;
  }
  return Status::InvalidArgument("bad_kv_policy", fmt::format("\"{}\" want recompute|drain|keep|abort", name));
}

std::string_view FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kAbortedByFlip:
      return "aborted_by_flip";
    case FinishReason::kTooStale:
      return "too_stale";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace bascule
