// DeepSeek-V2 and V3: latent attention (queries, and keys with values, through vectors of low rank) and experts beside
// shared ones. Mapped, not decoded: an engine derives the absorbed projections from kv_b_proj once it is complete.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {
namespace {

Status Read(const ConfigReader& reader, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.latent.query_rank, reader.Count("q_lora_rank", 0));
  ASSIGN_OR_RETURN(config.latent.kv_rank, reader.Size("kv_lora_rank"));
  ExpertSizes& experts = config.experts;
  ASSIGN_OR_RETURN(experts.count, reader.Count("n_routed_experts", 0));
  if (experts.count == 0) return OkStatus();
  ASSIGN_OR_RETURN(experts.per_token, reader.Size("num_experts_per_tok"));
  ASSIGN_OR_RETURN(experts.ffn, reader.Size("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const std::int64_t shared, reader.Count("n_shared_experts", 0));
  experts.shared_ffn = shared * experts.ffn;
  ASSIGN_OR_RETURN(const std::string choice, reader.Text("topk_method", "greedy"));
  experts.router_bias = choice == "noaux_tc";
  ASSIGN_OR_RETURN(const std::int64_t first, reader.Count("first_k_dense_replace", 0));
  ASSIGN_OR_RETURN(const std::int64_t step, reader.Size("moe_layer_freq", 1));
  return SetDenseLayers(config, [=](std::int64_t layer) { return layer < first || layer % step != 0; });
}

Status ReadV3(const ConfigReader& reader, ModelConfig& config) {
  RETURN_IF_ERROR(Read(reader, config));
  // Files of this class say noaux_tc or leave the choice to the class, which has no other.
  config.experts.router_bias = config.experts.count > 0;
  return OkStatus();
}

// One linear to both low ranks, or queries by themselves; then back to heads, a rank's heads each.
void AppendLatentAttention(const ModelConfig& config, std::vector<Module>& layer) {
  const LatentSizes& latent = config.latent;
  const Extent query_rank = Named("query_rank", latent.query_rank);
  const Extent kv_rank = Named("kv_rank", latent.kv_rank);
  const Extent kv_head =
      Named("nope_head_size", latent.nope_head_size) + Named("value_head_size", config.ValueHeadSize());
  const LinearPart kv_in = {"self_attn.kv_a_proj_with_mqa", kv_rank + Named("rope_head_size", latent.rope_head_size),
                            Cut::kWhole};
  Linear in = {.engine_name = kv_in.name,
               .parts = {kv_in},
               .columns = Hidden(config),
               .bias = config.qkv_bias,
               .weight_index = &EngineLayerTensors::latent_in,
               .bias_index = &EngineLayerTensors::latent_in_bias};
  Linear query = {.engine_name = "self_attn.q_proj",
                  .parts = {{"self_attn.q_proj", QueryRows(config), Cut::kRows, config.head_size}},
                  .columns = Hidden(config),
                  .weight_index = &EngineLayerTensors::q_from_latent};
  if (latent.query_rank > 0) {
    in.engine_name = "self_attn.fused_qkv_a_proj";
    in.parts = {{"self_attn.q_a_proj", query_rank, Cut::kWhole}, kv_in};
    query.engine_name = query.parts[0].name = "self_attn.q_b_proj";
    query.columns = query_rank;
  }
  layer.push_back(in);
  if (latent.query_rank > 0) {
    layer.push_back(Norm("self_attn.q_a_layernorm", query_rank, &EngineLayerTensors::q_latent_norm));
  }
  layer.push_back(query);
  layer.push_back(Norm("self_attn.kv_a_layernorm", kv_rank, &EngineLayerTensors::kv_latent_norm));
  layer.push_back(Linear{
      .engine_name = "self_attn.kv_b_proj",
      .parts = {{"self_attn.kv_b_proj", Named("query_heads", config.query_heads) * kv_head, Cut::kRows, kv_head.value}},
      .columns = kv_rank,
      .weight_index = &EngineLayerTensors::kv_from_latent});
  layer.push_back(OutLinear(config));
}

void AppendExperts(const ModelConfig& config, std::vector<Module>& layer) {
  layer.push_back(Router(config));
  if (config.experts.router_bias) {
    layer.push_back(Parameter{.name = "mlp.gate.e_score_correction_bias",
                              .shape = {Named("experts", config.experts.count)},
                              .layer_index = &EngineLayerTensors::router_bias});
  }
  layer.push_back(ExpertNetworks(config));
  if (config.experts.shared_ffn == 0) return;
  const Extent ffn = Named("shared_expert_ffn", config.experts.shared_ffn);
  Linear gate_up = GateUpLinear(config, "mlp.shared_experts", ffn);
  Linear down = DownLinear(config, "mlp.shared_experts", ffn);
  gate_up.weight_index = &EngineLayerTensors::shared_gate_up;
  down.weight_index = &EngineLayerTensors::shared_down;
  layer.push_back(gate_up);
  layer.push_back(down);
}

std::vector<Module> Layer(const ModelConfig& config, std::int64_t index) {
  std::vector<Module> layer = {HiddenNorm(config, "input_layernorm", &EngineLayerTensors::input_norm)};
  AppendLatentAttention(config, layer);
  layer.push_back(HiddenNorm(config, "post_attention_layernorm", &EngineLayerTensors::post_attention_norm));
  if (config.HasExperts(index)) {
    AppendExperts(config, layer);
  } else {
    AppendFeedForward(config, layer);
  }
  return layer;
}

}  // namespace

const Architecture kDeepseekV2 = {
    .name = "DeepseekV2ForCausalLM", .head_size = HeadSizeRule::kLatent, .read = Read, .layer = Layer};

const Architecture kDeepseekV3 = {
    .name = "DeepseekV3ForCausalLM", .head_size = HeadSizeRule::kLatent, .read = ReadV3, .layer = Layer};

}  // namespace bascule
