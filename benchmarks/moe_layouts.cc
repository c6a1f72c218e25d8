#include "benchmarks/moe_layouts.h"

#include <fmt/format.h>

#include <span>

namespace bascule {
namespace {

// Of each head, as latent attention has them.
constexpr std::int64_t kQueryRank = 1536;
constexpr std::int64_t kKeyRank = 512;
constexpr std::int64_t kRotary = 64;
constexpr std::int64_t kHeadSize = 128;

// How an engine cuts a tensor that is no expert's.
enum class Cut { kNone, kRows, kColumns };

struct SharedTensor {
  std::int32_t logical = 0;
  Cut cut = Cut::kNone;
};

struct MoeLayer {
  std::vector<SharedTensor> shared;          // attention, router, the expert that all tokens use
  std::vector<std::int32_t> expert_tensors;  // gate, up and down of expert 0, then of expert 1, ...
};

struct MoeTensors {
  std::vector<TensorSpec> specs;
  SharedTensor embedding;
  std::vector<MoeLayer> layers;
  std::vector<SharedTensor> last;  // final norm and head
};

class TensorLister {
 public:
  explicit TensorLister(const MoeSizes& sizes) : sizes_(sizes) {}

  MoeTensors List() {
    list_.embedding = Shared("model.embed_tokens.weight", {sizes_.vocabulary, sizes_.hidden}, Cut::kRows);
    for (int layer = 0; layer < sizes_.layers; ++layer) list_.layers.push_back(LayerOf(layer));
    list_.last = {Shared("model.norm.weight", {sizes_.hidden}, Cut::kNone),
                  Shared("lm_head.weight", {sizes_.vocabulary, sizes_.hidden}, Cut::kRows)};
    return std::move(list_);
  }

 private:
  std::int32_t Add(std::string name, Dims shape) {
    list_.specs.push_back({.name = std::move(name), .dtype = DType::kBf16, .shape = shape});
    return static_cast<std::int32_t>(list_.specs.size()) - 1;
  }
  SharedTensor Shared(std::string name, Dims shape, Cut cut) { return {Add(std::move(name), shape), cut}; }

  MoeLayer LayerOf(int index) {
    const std::int64_t hidden = sizes_.hidden;
    const std::int64_t ffn = sizes_.expert_ffn;
    const std::string layer = fmt::format("model.layers.{}.", index);
    const std::string attention = layer + "self_attn.";
    MoeLayer result;
    result.shared = {
        Shared(layer + "input_layernorm.weight", {hidden}, Cut::kNone),
        Shared(attention + "q_a_proj.weight", {kQueryRank, hidden}, Cut::kNone),
        Shared(attention + "q_a_layernorm.weight", {kQueryRank}, Cut::kNone),
        Shared(attention + "q_b_proj.weight", {sizes_.heads * (kHeadSize + kRotary), kQueryRank}, Cut::kRows),
        Shared(attention + "kv_a_proj_with_mqa.weight", {kKeyRank + kRotary, hidden}, Cut::kNone),
        Shared(attention + "kv_a_layernorm.weight", {kKeyRank}, Cut::kNone),
        Shared(attention + "kv_b_proj.weight", {sizes_.heads * 2 * kHeadSize, kKeyRank}, Cut::kRows),
        Shared(attention + "o_proj.weight", {hidden, sizes_.heads * kHeadSize}, Cut::kColumns),
        Shared(layer + "post_attention_layernorm.weight", {hidden}, Cut::kNone),
        Shared(layer + "mlp.gate.weight", {sizes_.experts, hidden}, Cut::kNone),
        Shared(layer + "mlp.shared_experts.gate_proj.weight", {ffn, hidden}, Cut::kRows),
        Shared(layer + "mlp.shared_experts.up_proj.weight", {ffn, hidden}, Cut::kRows),
        Shared(layer + "mlp.shared_experts.down_proj.weight", {hidden, ffn}, Cut::kColumns),
    };
    for (int expert = 0; expert < sizes_.experts; ++expert) {
      const std::string name = fmt::format("{}mlp.experts.{}.", layer, expert);
      result.expert_tensors.push_back(Add(name + "gate_proj.weight", {ffn, hidden}));
      result.expert_tensors.push_back(Add(name + "up_proj.weight", {ffn, hidden}));
      result.expert_tensors.push_back(Add(name + "down_proj.weight", {hidden, ffn}));
    }
    return result;
  }

  const MoeSizes& sizes_;
  MoeTensors list_;
};

std::int32_t AddLocal(RankLayout& rank, std::string name, Dims shape) {
  rank.tensors.push_back({.name = std::move(name), .dtype = DType::kBf16, .shape = shape, .stride = {}});
  return static_cast<std::int32_t>(rank.tensors.size()) - 1;
}

// Part `part` of `parts` of a tensor, as a local tensor of its own.
void AddShared(RankLayout& rank, const MoeTensors& tensors, const SharedTensor& shared, int part, int parts) {
  const TensorSpec& spec = tensors.specs[static_cast<std::size_t>(shared.logical)];
  Box box = Box::Whole(spec.shape);
  if (shared.cut != Cut::kNone) {
    const int dim = shared.cut == Cut::kRows ? 0 : 1;
    box.extent[dim] /= parts;
    box.offset[dim] = box.extent[dim] * part;
  }
  const std::int32_t local = AddLocal(rank, spec.name, box.extent);
  rank.rows.push_back({local, Box::Whole(box.extent), shared.logical, box});
}

// Experts [first, first + count) of a layer, stacked as engines have them: gate above up, and down.
void AddExperts(RankLayout& rank, const MoeSizes& sizes, const MoeLayer& layer, int index, int first, int count) {
  const std::int64_t hidden = sizes.hidden;
  const std::int64_t ffn = sizes.expert_ffn;
  const std::string name = fmt::format("model.layers.{}.mlp.experts.", index);
  const std::int32_t gate_up = AddLocal(rank, name + "w13_weight", {count, 2 * ffn, hidden});
  const std::int32_t down = AddLocal(rank, name + "w2_weight", {count, hidden, ffn});
  for (int e = 0; e < count; ++e) {
    const auto logical = [&](int which) {
      return layer.expert_tensors[static_cast<std::size_t>(3 * (first + e) + which)];
    };
    rank.rows.push_back({gate_up, {{e, 0, 0}, {1, ffn, hidden}}, logical(0), {{0, 0}, {ffn, hidden}}});
    rank.rows.push_back({gate_up, {{e, ffn, 0}, {1, ffn, hidden}}, logical(1), {{0, 0}, {ffn, hidden}}});
    rank.rows.push_back({down, {{e, 0, 0}, {1, hidden, ffn}}, logical(2), {{0, 0}, {hidden, ffn}}});
  }
}

}  // namespace

Layout MoeTrainerLayout(const MoeSizes& sizes) {
  MoeTensors tensors = TensorLister(sizes).List();
  Layout layout;
  const int experts = sizes.experts / sizes.trainer_experts_over;
  for (int stage = 0; stage < sizes.trainer_stages; ++stage) {
    for (int part = 0; part < sizes.trainer_experts_over; ++part) {
      RankLayout& rank = layout.ranks.emplace_back();
      if (stage == 0) AddShared(rank, tensors, tensors.embedding, 0, 1);
      const int begin = sizes.layers * stage / sizes.trainer_stages;
      const int end = sizes.layers * (stage + 1) / sizes.trainer_stages;
      for (int l = begin; l < end; ++l) {
        const MoeLayer& layer = tensors.layers[static_cast<std::size_t>(l)];
        for (const SharedTensor& shared : layer.shared) AddShared(rank, tensors, shared, 0, 1);
        AddExperts(rank, sizes, layer, l, part * experts, experts);
      }
      if (stage + 1 < sizes.trainer_stages) continue;
      for (const SharedTensor& shared : tensors.last) AddShared(rank, tensors, shared, 0, 1);
    }
  }
  layout.tensors = std::move(tensors.specs);
  return layout;
}

Layout MoeEngineLayout(const MoeSizes& sizes) {
  MoeTensors tensors = TensorLister(sizes).List();
  Layout layout;
  const int experts = sizes.experts / sizes.engine_ranks;
  const int parts = sizes.engine_attention_over;
  for (int r = 0; r < sizes.engine_ranks; ++r) {
    RankLayout& rank = layout.ranks.emplace_back();
    AddShared(rank, tensors, tensors.embedding, r % parts, parts);
    for (int l = 0; l < sizes.layers; ++l) {
      const MoeLayer& layer = tensors.layers[static_cast<std::size_t>(l)];
      for (const SharedTensor& shared : layer.shared) AddShared(rank, tensors, shared, r % parts, parts);
      AddExperts(rank, sizes, layer, l, r * experts, experts);
    }
    for (const SharedTensor& shared : tensors.last) AddShared(rank, tensors, shared, r % parts, parts);
  }
  layout.tensors = std::move(tensors.specs);
  return layout;
}

}  // namespace bascule
