#include "tools/canary_gate.h"

#include <utility>

#include "engine_side/decode/grpc/rollout_client.h"

namespace bascule {
namespace {

GenerateRequest RequestOf(const Sentinel& sentinel) {
  GenerateRequest request;
  request.prompt = sentinel.tokens;
  request.max_new_tokens = 1;
  request.prompt_logprobs = true;
  return request;
}

Status CheckVersion(const Rollout& rollout, const CanaryView& view) {
  const std::uint64_t number = view.flip.version.number;
  if (!rollout.spans.empty() && rollout.spans.front().version == number && rollout.spans.front().kv_epoch == number) {
    return OkStatus();
  }
  return Status::FailedPrecondition("version_not_live",
                                    fmt::format("{} answers with version {}, not {}", view.address,
                                                rollout.spans.empty() ? 0 : rollout.spans.front().version, number));
}

Status AskCanary(const std::vector<Sentinel>& sentinels, double bound, const ClientSecurity& security,
                 const CanaryView& view) {
  ASSIGN_OR_RETURN(const auto client, RolloutClient::Connect(view.address, view.deadline, security));
  std::vector<GenerateRequest> requests;
  for (const Sentinel& sentinel : sentinels) requests.push_back(RequestOf(sentinel));
  ASSIGN_OR_RETURN(const std::vector<Rollout> rollouts, client->GenerateBatch(requests, view.deadline, view.stop));
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    RETURN_IF_ERROR(CheckVersion(rollouts[i], view));
    const std::vector<float> none;
    RETURN_IF_ERROR(CheckSentinel(i, sentinels[i], rollouts[i].prompt ? rollouts[i].prompt->logprobs : none, bound));
  }
  return OkStatus();
}

}  // namespace

CanaryGate SentinelGate(std::vector<Sentinel> sentinels, double bound, ClientSecurity security) {
  return [sentinels = std::move(sentinels), bound, security = std::move(security)](const CanaryView& view) {
    return AskCanary(sentinels, bound, security, view);
  };
}

}  // namespace bascule
