// Small random models: logical tensors as Hugging Face names them, and the same in the decoder's fused form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bridge/layout/layout.h"
#include "engine_side/decode/step_weights.h"
#include "kernels/weight_view.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

ModelConfig TinyLlama();  // two layers, grouped heads, a head of its own
ModelConfig TinyQwen3();  // q and k norms, a tied head, a head size that is not hidden / heads
ModelConfig OneKvHead();  // of eight query heads
ModelConfig ThreeKvHeads();
ModelConfig TinyQwen2();  // q, k and v biases
ModelConfig AllBiases();  // and those of the other products; Llama 3's positions

using LogicalWeights = std::map<std::string, std::vector<float>>;

// Values that bf16 holds exactly.
LogicalWeights RandomWeights(const ModelConfig& config, std::uint32_t seed);

// The decoder's local tensors on every tensor-parallel rank, in the order of their indices. Cut here by plain loops
// over the logical tensors: nothing is shared with model/.
struct FusedModel {
  EngineTensors tensors;
  std::vector<std::vector<std::vector<std::byte>>> bytes;  // by rank
  Layout layout;                                           // tensors only, no rows
};
FusedModel Fuse(const ModelConfig& config, const LogicalWeights& weights, DType dtype, int ranks = 1);

// A version in plain memory.
class PlainWeights final : public StepWeights {
 public:
  PlainWeights(FusedModel model, std::uint64_t number) : model_(std::move(model)) {
    version_.run = "test";
    version_.number = number;
    version_.digest = Sha256Of(std::to_string(number));
  }
  const WeightVersion& version() const override { return version_; }
  std::span<const std::byte> Tensor(int engine_rank, int tensor) const override {
    return model_.bytes[static_cast<std::size_t>(engine_rank)][static_cast<std::size_t>(tensor)];
  }
  const EngineTensors& tensors() const { return model_.tensors; }

 private:
  FusedModel model_;
  WeightVersion version_;
};

}  // namespace bascule
