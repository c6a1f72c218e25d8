// Requests that a scheduler and a decoder, whichever it is, carry out step by step, without threads of their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine_side/decode/decoder.h"
#include "engine_side/decode/device_decoder.h"
#include "engine_side/decode/host_decoder.h"
#include "engine_side/decode/scheduler.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {

inline constexpr std::int64_t kBenchPages = 64, kBenchPageTokens = 16, kBenchRows = 40, kBenchRunning = 12;

DecoderOptions BenchOptions(const ModelConfig& config, const EngineTensors& tensors, WeightType type, int ranks);
KvShape BenchKv(const DecoderOptions& options);

// All that a request heard.
class Heard final : public GenerateSink {
 public:
  void OnPrompt(const PromptReport& report) override { prompt = report; }
  void OnToken(const GeneratedToken& token) override { tokens.push_back(token); }
  void OnFinish(FinishReason reason, const Status& why) override { finish = reason, status = why; }
  std::vector<std::int32_t> ids() const;
  std::vector<float> logprobs() const;

  PromptReport prompt;
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finish;
  Status status;
};

class DecodeBench {
 public:
  DecodeBench(const ModelConfig& config, Decoder& decoder);
  std::shared_ptr<Heard> Submit(const GenerateRequest& request);
  // What the decoder answered.
  Status Step(const std::shared_ptr<StepWeights>& weights);
  // Steps until nothing is left to do, or `steps` are done.
  Status Run(const std::shared_ptr<StepWeights>& weights, int steps = 10'000);
  Scheduler& scheduler() { return scheduler_; }

 private:
  Result<Decoder::Draws> Compute(Scheduler::Step& step);

  Decoder& decoder_;
  Scheduler scheduler_;
  std::uint64_t last_id_ = 0;
};

// Prompts of several lengths; greedy and drawn; rules for the device and for the host.
std::vector<GenerateRequest> MixedRequests(const ModelConfig& config);

}  // namespace bascule
