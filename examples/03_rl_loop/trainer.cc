#include "examples/03_rl_loop/trainer.h"

#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"
#include "examples/03_rl_loop/grpo.h"
#include "examples/03_rl_loop/policy.h"
#include "examples/03_rl_loop/torch_tensor.h"
#include "examples/03_rl_loop/trainer_rank.h"

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
  OptimizerOptions optimizer;
  std::map<std::string, Dims> shapes;  // of whole parameters
  std::vector<TrainerRank> ranks;
  int step = 0;
};

Trainer::Trainer(const TrainerOptions& options) : state_(std::make_unique<State>()) {
  at::set_num_threads(1);  // the engine has the other core
  state_->optimizer.total_steps = options.total_steps;
  const TensorMap initial = InitialTensors(state_->config, options.seed);
  for (const auto& [name, tensor] : initial) state_->shapes.emplace(name, ShapeOfTensor(tensor));
  for (int r = 0; r < options.rank_count; ++r) {
    state_->ranks.emplace_back(initial, r, options.rank_count, state_->optimizer);
  }
}

Trainer::~Trainer() = default;

std::int64_t Trainer::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& [name, shape] : state_->shapes) count += TensorSpec{name, DType::kF32, shape}.Elements();
  return count;
}

Status Trainer::WriteCheckpoint(const std::string& directory) const {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string config_path = directory + "/config.json";
  if (std::ofstream config(config_path); !(config << ConfigJson(state_->config)).flush()) {
    return Status::Unavailable("cannot_write", config_path);
  }
  const torch::NoGradGuard no_grad;
  std::vector<TensorSpec> specs;
  std::vector<torch::Tensor> rounded;
  std::vector<std::span<const std::byte>> data;
  for (const auto& [name, tensor] : GatherTensors(state_->ranks)) {
    specs.push_back({name, DType::kBf16, ShapeOfTensor(tensor)});
    rounded.push_back(tensor.to(torch::kBFloat16).contiguous());
    data.emplace_back(static_cast<const std::byte*>(rounded.back().data_ptr()), rounded.back().nbytes());
  }
  return WriteSafetensors(directory + "/model.safetensors", specs, data, {{"format", "pt"}});
}

Result<TensorSource> Trainer::Source() const {
  const int rank_count = static_cast<int>(state_->ranks.size());
  TensorSource source(rank_count);
  for (int r = 0; r < rank_count; ++r) {
    for (const auto& [name, shard] : state_->ranks[static_cast<std::size_t>(r)].shards()) {
      const Dims& shape = state_->shapes.at(name);
      ASSIGN_OR_RETURN(const ShardView view, ViewOfRows(name, shape, RowsOfRank(shape[0], r, rank_count).begin, shard));
      RETURN_IF_ERROR(source.Add(r, view));
    }
  }
  return source;
}

LearnReport Trainer::Learn(const SampledBatch& sampled) {
  const RolloutBatch batch = TensorsOf(sampled);
  const torch::Tensor logits = PolicyLogits(state_->config, GatherTensors(state_->ranks), batch.token_ids);
  const GrpoLoss loss = ComputeGrpoLoss(batch, logits, GrpoOptions{});
  loss.loss.backward();
  return {loss.ratio_deviation, loss.clipped_share, loss.entropy};
}

void Trainer::Step() { OptimizerStep(state_->ranks, state_->optimizer, state_->step++); }

}  // namespace bascule::rl_loop
