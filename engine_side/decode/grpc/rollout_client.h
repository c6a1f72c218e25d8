// Asks an engine for rollouts over gRPC: for the program, for training loops, for tests.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "engine_side/decode/decode_engine.h"

namespace bascule {

// New tokens [begin, end) of a rollout, made by one version with one KV epoch.
struct RolloutSpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::uint64_t version = 0;
  std::uint64_t kv_epoch = 0;
  friend bool operator==(const RolloutSpan&, const RolloutSpan&) = default;
};

// A flip lay between new token `token` and the one before.
struct FlipGap {
  std::int32_t token = 0;
  Duration gap{};  // between the two
  friend bool operator==(const FlipGap&, const FlipGap&) = default;
};

struct Rollout {
  std::vector<std::int32_t> tokens;            // new ones
  std::vector<float> logprobs;                 // one each
  std::vector<std::vector<TokenLogprob>> top;  // one each, where asked for: GenerateRequest::top_logprobs
  std::vector<RolloutSpan> spans;              // in order, without a gap, neighbours differ
  std::optional<PromptReport> prompt;          // once there is a token
  std::vector<FlipGap> flip_gaps;
  FinishReason finish = FinishReason::kLength;
  std::string reason;  // of kCancelled: "deadline" "slow_reader" "engine_stopping" ...
};

class RolloutClient {
 public:
  // Unavailable "peer_unreachable"; DeadlineExceeded "deadline"; InvalidArgument "bad_address"
  static Result<std::unique_ptr<RolloutClient>> Connect(const std::string& address, Deadline deadline,
                                                        const ClientSecurity& security = {});
  ~RolloutClient();

  // Waits for the whole rollout; `on_piece` sees each piece as it comes (spans count from the first new token). A stop
  // cancels the request in the engine.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // DataLoss "bad_message"  the pieces do not add up
  // and what DecodeEngine::Submit says
  Result<Rollout> Generate(const GenerateRequest& request, Deadline deadline, std::stop_token stop = {},
                           const std::function<void(const Rollout& piece)>& on_piece = {});

  // As Generate for every request, over one stream; the rollouts come in the order of `requests`. `on_piece` is told
  // which request a piece belongs to. One that is refused or fails ends them all, with its error.
  Result<std::vector<Rollout>> GenerateBatch(
      std::span<const GenerateRequest> requests, Deadline deadline, std::stop_token stop = {},
      const std::function<void(std::size_t request, const Rollout& piece)>& on_piece = {});

  // `samples` rollouts of one prompt, which is computed once: the k-th, from 0, is that of a request with `sample` + k.
  // Otherwise as GenerateBatch.
  Result<std::vector<Rollout>> GenerateSamples(
      const GenerateRequest& request, std::uint32_t samples, Deadline deadline, std::stop_token stop = {},
      const std::function<void(std::size_t sample, const Rollout& piece)>& on_piece = {});

 private:
  struct Connection;
  explicit RolloutClient(std::unique_ptr<Connection> connection);
  const std::unique_ptr<Connection> connection_;
};

}  // namespace bascule
