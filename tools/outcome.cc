#include "tools/outcome.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace bascule {
namespace {

constexpr std::string_view kUsage = "usage";

constexpr std::array<std::string_view, 6> kVerificationReasons = {
    "artifact_altered", "bucket_damaged", "buckets_missing", "content_differs", "digest_mismatch", "replicas_differ"};

constexpr std::array<std::string_view, 4> kUnreachableReasons = {"name_unknown", "peer_unreachable", "peer_lost",
                                                                 "rank_lost"};

template <std::size_t N>
bool Has(const std::array<std::string_view, N>& reasons, std::string_view reason) {
  return std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
}

}  // namespace

int ExitCodeOf(const Status& status) {
  if (status.ok()) return kExitDone;
  if (status.reason() == kUsage) return kExitUsage;
  if (status.reason() == "interrupted") return kExitInterrupted;
  if (status.code() == StatusCode::kDataLoss && Has(kVerificationReasons, status.reason()))
    return kExitVerificationFailed;
  if (Has(kUnreachableReasons, status.reason())) return kExitUnreachable;
  return kExitFailed;
}

Status UsageError(std::string message) { return Status::InvalidArgument(kUsage, std::move(message)); }

}  // namespace bascule
