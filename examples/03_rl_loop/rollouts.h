// Rollouts of the task by the engine: what the trainer learns from, as plain numbers.
//
// Thread-safety: RolloutSampler is thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/grpc/rollout_client.h"
#include "examples/03_rl_loop/background.h"
#include "examples/03_rl_loop/task.h"

namespace bascule::rl_loop {

struct RolloutOptions {
  std::uint64_t seed = 1;  // of the run: prompts and samples follow from it, the batch's number and the row
  int prompt_count = 24;
  int group_size = 16;  // responses to one prompt
  float temperature = 1.0F;
  int rank = 0;   // of the trainer; each asks for its own share of the prompts
  int ranks = 1;  // at most prompt_count
};

// A trainer rank's part of a batch: rows of one shape; the responses to one prompt lie in adjacent rows.
struct SampledBatch {
  double share = 1;  // of all ranks' rows
  int group_size = 0;
  int prompt_tokens = 0;
  int response_tokens = 0;
  std::vector<std::int64_t> token_ids;        // [rows, prompt + response]
  std::vector<float> logprobs;                // [rows, response], under the weights that chose the token
  std::vector<float> rewards;                 // [rows, response]
  std::vector<std::uint64_t> token_versions;  // [rows, response]

  std::int64_t rows() const { return static_cast<std::int64_t>(logprobs.size()) / response_tokens; }
  double MeanReward() const;
  // How far the tokens' versions lie behind `version`, on average, and how many tokens do.
  double MeanStaleness(std::uint64_t version) const;
  std::int64_t StaleTokens(std::uint64_t version) const;
};

class RolloutSampler {
 public:
  // `client` is borrowed.
  RolloutSampler(RolloutClient& client, SortTask task, RolloutOptions options);

  // Asks for this rank's part of batch `number`, which is the same whatever the number of ranks; the engine decodes it
  // under whatever versions are live meanwhile.
  //
  // As RolloutClient::GenerateBatch; DataLoss "short_rollout"  a response ended early
  Background<SampledBatch> Request(std::uint64_t number);

  // Tokens that have come from the engine so far, those of unfinished responses included.
  std::uint64_t tokens_received() const { return tokens_received_; }

 private:
  std::vector<GenerateRequest> RequestsOf(std::uint64_t number) const;
  Result<SampledBatch> Sample(std::uint64_t number, std::stop_token stop);

  RolloutClient& client_;
  const SortTask task_;
  const RolloutOptions options_;
  std::atomic<std::uint64_t> tokens_received_{0};
};

}  // namespace bascule::rl_loop
