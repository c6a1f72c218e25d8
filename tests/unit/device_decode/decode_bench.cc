#include "tests/unit/device_decode/decode_bench.h"

#include <algorithm>
#include <iterator>
#include <random>

namespace bascule {

DecoderOptions BenchOptions(const ModelConfig& config, const EngineTensors& tensors, WeightType type, int ranks) {
  return {.config = config,
          .tensors = tensors,
          .shape = *RankShapeOf(config, tensors, ranks),
          .weight_type = type,
          .max_rows = kBenchRows,
          .max_logits = kBenchRunning};
}

KvShape BenchKv(const DecoderOptions& options) {
  return {.layers = options.config.layers,
          .kv_heads = options.shape.kv_heads,
          .head_size = options.config.head_size,
          .page_tokens = kBenchPageTokens,
          .ranks = options.shape.ranks};
}

std::vector<std::int32_t> Heard::ids() const {
  std::vector<std::int32_t> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

std::vector<float> Heard::logprobs() const {
  std::vector<float> logprobs;
  for (const GeneratedToken& token : tokens) logprobs.push_back(token.logprob);
  return logprobs;
}

DecodeBench::DecodeBench(const ModelConfig& config, Decoder& decoder)
    : decoder_(decoder),
      scheduler_({.vocabulary = config.vocabulary,
                  .max_positions = config.max_positions,
                  .max_running = kBenchRunning,
                  .max_waiting = 1000,
                  .max_step_tokens = kBenchRows,
                  .kv_pages = kBenchPages,
                  .page_tokens = kBenchPageTokens}) {}

std::shared_ptr<Heard> DecodeBench::Submit(const GenerateRequest& request) {
  auto sink = std::make_shared<Heard>();
  CHECK(scheduler_.Submit(++last_id_, request, sink, {}).ok());
  return sink;
}

Result<Decoder::Draws> DecodeBench::Compute(Scheduler::Step& step) {
  Decoder::Draws answers;
  RETURN_IF_ERROR(decoder_.CopyPages(step.copies));
  for (Scheduler::Pass& pass : step.passes) {
    if (pass.rows.empty()) continue;
    ASSIGN_OR_RETURN(Decoder::Draws draws, decoder_.Step(pass.rows, pass.wishes, pass.weights));
    std::ranges::move(draws, std::back_inserter(answers));
  }
  return answers;
}

Status DecodeBench::Step(const std::shared_ptr<StepWeights>& weights) {
  std::vector<Delivery> deliveries;
  Scheduler::Step step = scheduler_.BeginStep(weights, {}, deliveries);
  const Result<Decoder::Draws> draws = Compute(step);
  if (draws.ok()) {
    scheduler_.FinishStep(*draws, {}, deliveries);
  } else {
    scheduler_.FailStep(draws.status(), deliveries);
  }
  for (const Delivery& delivery : deliveries) delivery.Tell();
  return draws.status();
}

Status DecodeBench::Run(const std::shared_ptr<StepWeights>& weights, int steps) {
  for (int step = 0; step < steps && scheduler_.HasWork({}); ++step) RETURN_IF_ERROR(Step(weights));
  return OkStatus();
}

std::vector<GenerateRequest> MixedRequests(const ModelConfig& config) {
  std::mt19937 random(11);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(config.vocabulary) - 1);
  std::vector<GenerateRequest> requests;
  for (const int size : {1, 3, 17, 34, 17}) {
    GenerateRequest& request = requests.emplace_back();
    request.max_new_tokens = 5;
    std::generate_n(std::back_inserter(request.prompt), size, [&] { return token(random); });
  }
  requests[1].temperature = 0.8f;
  requests[1].seed = 7;
  requests[2].prompt_logprobs = true;
  requests[3].temperature = 1;
  requests[3].top_k = 5;
  requests[3].top_logprobs = 3;
  requests[4].prompt = requests[2].prompt;  // a beginning to share
  requests[4].stop = {requests[4].prompt.front(), requests[4].prompt.back()};
  requests[4].min_new_tokens = 4;
  return requests;
}

}  // namespace bascule
