#include "engine_side/decode/rank_weights.h"

#include "base/status.h"

namespace bascule {

RankWeights RankWeights::Of(const DecoderOptions& options, int rank, const StepWeights& weights) {
  const RankShape& shape = options.shape;
  const std::int64_t hidden = options.config.hidden, head_size = options.config.head_size;
  const auto view = [&](int tensor, std::int64_t elements) {
    if (tensor < 0) return WeightView{};
    const std::span<const std::byte> bytes = weights.Tensor(rank, tensor);
    const WeightView found{bytes.data(), options.weight_types.empty()
                                             ? options.weight_type
                                             : options.weight_types.at(static_cast<std::size_t>(tensor))};
    CHECK(static_cast<std::int64_t>(bytes.size()) >= elements * found.item_bytes());
    return found;
  };
  RankWeights found;
  found.embedding = view(options.tensors.embedding, shape.vocabulary * hidden);
  for (const EngineLayerTensors& layer : options.tensors.layers) {
    found.layers.push_back({.input_norm = view(layer.input_norm, hidden),
                            .qkv = view(layer.qkv, shape.qkv_size() * hidden),
                            .qkv_bias = view(layer.qkv_bias, shape.qkv_size()),
                            .q_norm = view(layer.q_norm, head_size),
                            .k_norm = view(layer.k_norm, head_size),
                            .out = view(layer.out, hidden * shape.query_size),
                            .out_bias = view(layer.out_bias, hidden),
                            .post_attention_norm = view(layer.post_attention_norm, hidden),
                            .gate_up = view(layer.gate_up, 2 * shape.ffn * hidden),
                            .gate_up_bias = view(layer.gate_up_bias, 2 * shape.ffn),
                            .down = view(layer.down, hidden * shape.ffn),
                            .down_bias = view(layer.down_bias, hidden)});
  }
  found.final_norm = view(options.tensors.final_norm, hidden);
  found.head = view(options.tensors.head, shape.vocabulary * hidden);
  return found;
}

}  // namespace bascule
