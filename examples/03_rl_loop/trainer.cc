#include "examples/03_rl_loop/trainer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"
#include "examples/03_rl_loop/grpo.h"
#include "examples/03_rl_loop/policy.h"
#include "examples/03_rl_loop/trainer_rank.h"

#include <torch/torch.h>

namespace bascule::rl_loop {
namespace {

std::string ConfigJson(const PolicyConfig& config) {
  const nlohmann::ordered_json json = {
      {"architectures", {config.qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"hidden_act", "silu"},
      {"torch_dtype", "bfloat16"},
  };
  return json.dump(2) + "\n";
}

Dims ShapeOfTensor(const torch::Tensor& tensor) {
  return Dims(std::span(tensor.sizes().data(), tensor.sizes().size()));
}

torch::Tensor MatrixOf(const std::vector<float>& values, std::int64_t rows) {
  return torch::tensor(values, torch::kFloat32).view({rows, -1});
}

RolloutBatch TensorsOf(const SampledBatch& batch) {
  return {.group_size = batch.group_size,
          .token_ids = torch::tensor(batch.token_ids, torch::kInt64).view({batch.rows(), -1}),
          .behavior_logp = MatrixOf(batch.logprobs, batch.rows()),
          .token_rewards = MatrixOf(batch.rewards, batch.rows())};
}

}  // namespace

struct Trainer::State {
  PolicyConfig config;
  TensorMap initial;  // whole, of version 0
  TrainerRank rank;
  TorchTensors shards;
  TensorMap parameters;  // whole, as gathered last
  int step = 0;

  State(const TrainerOptions& options, Collective& ranks)
      : initial(InitialTensors(config, options.seed)), rank(initial, ranks, {.total_steps = options.total_steps}) {}
};

Trainer::Trainer(const TrainerOptions& options, Collective& ranks) {
  at::set_num_threads(1);  // the engine has the other core
  state_ = std::make_unique<State>(options, ranks);
}

Trainer::~Trainer() = default;

std::int64_t Trainer::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& [name, tensor] : state_->initial) count += tensor.numel();
  return count;
}

Status Trainer::WriteCheckpoint(const std::string& directory) const {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string config_path = directory + "/config.json";
  if (std::ofstream config(config_path); !(config << ConfigJson(state_->config)).flush()) {
    return Status::Unavailable("cannot_write", config_path);
  }
  std::vector<TensorSpec> specs;
  std::vector<torch::Tensor> rounded;
  std::vector<std::span<const std::byte>> data;
  for (const auto& [name, tensor] : state_->initial) {
    specs.push_back({name, DType::kBf16, ShapeOfTensor(tensor)});
    rounded.push_back(tensor.to(torch::kBFloat16));
    data.emplace_back(static_cast<const std::byte*>(rounded.back().data_ptr()), rounded.back().nbytes());
  }
  return WriteSafetensors(directory + "/model.safetensors", specs, data, {{"format", "pt"}});
}

Result<TensorSource> Trainer::Source() {
  RETURN_IF_ERROR(state_->rank.Describe(state_->shards));
  TensorSource source(/*trainer_ranks=*/1);
  RETURN_IF_ERROR(state_->shards.AddTo(source, 0));
  return source;
}

Status Trainer::CheckInPlace() const { return state_->shards.CheckInPlace(); }

Status Trainer::Gather() {
  ASSIGN_OR_RETURN(state_->parameters, state_->rank.Gather());
  return OkStatus();
}

std::vector<float> Trainer::NextTokenLogprobs(const std::vector<std::vector<TokenId>>& prompts) const {
  const torch::NoGradGuard no_grad;
  TensorMap published;
  for (const auto& [name, tensor] : state_->parameters) {
    published.emplace(name, tensor.to(torch::kBFloat16).to(torch::kFloat32));
  }
  std::vector<float> logprobs;
  for (const std::vector<TokenId>& prompt : prompts) {
    const torch::Tensor ids = torch::tensor(prompt, torch::kInt64).unsqueeze(0);
    const torch::Tensor last = PolicyLogits(state_->config, published, ids)[0][-1].log_softmax(0).contiguous();
    logprobs.insert(logprobs.end(), last.data_ptr<float>(), last.data_ptr<float>() + last.numel());
  }
  return logprobs;
}

Result<LearnReport> Trainer::Learn(const SampledBatch& sampled) {
  const RolloutBatch batch = TensorsOf(sampled);
  const torch::Tensor logits = PolicyLogits(state_->config, state_->parameters, batch.token_ids);
  const GrpoLoss loss = ComputeGrpoLoss(batch, logits, GrpoOptions{});
  (loss.loss * sampled.share).backward();
  RETURN_IF_ERROR(state_->rank.ReduceGradients());
  return LearnReport{loss.ratio_deviation, loss.clipped_share, loss.entropy};
}

Status Trainer::Step() { return state_->rank.Step(state_->step++).status(); }

}  // namespace bascule::rl_loop
