// Does the engine compute what the trainer computes, under every version? The engine draws the next token of a few
// prompts and says how probable it was; the trainer works out the whole distribution from its masters of that version.
//
// Digests prove that engine memory holds the trainer's bytes where the map says; this shows that the map is right and
// that both sides mean the same function.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/grpc/rollout_client.h"
#include "examples/03_rl_loop/task.h"

namespace bascule::rl_loop {

// What the engine said of each prompt.
struct ProbeAnswer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
};

class ParityProbe {
 public:
  // Prompts of the task, begun and continued with digits, so that every position of a response is asked for. `client`
  // is borrowed.
  ParityProbe(RolloutClient& client, const SortTask& task, std::uint64_t seed);

  const std::vector<std::vector<TokenId>>& prompts() const { return prompts_; }

  // As RolloutClient::GenerateBatch; DataLoss "engine_disagrees"  the tokens are of another version than `number`
  Result<ProbeAnswer> Ask(std::uint64_t number, std::stop_token stop) const;

 private:
  RolloutClient& client_;
  const std::uint64_t seed_;
  std::vector<std::vector<TokenId>> prompts_;
};

// Mean of |ratio - 1| of the trainer's probability of each token to the engine's; `expected` is
// Trainer::NextTokenLogprobs of the prompts.
double DeviationOf(const ProbeAnswer& answer, std::span<const float> expected);

// Both sides multiply the same bf16 weights and add up in fp32; the orders differ, which moves the ratio by about 1e-6.
// One optimizer step moves it by hundredths.
inline constexpr double kProbeBound = 1e-3;

}  // namespace bascule::rl_loop
