#include "model/architectures/registry_internal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bridge/plan/nearest_name.h"
#include "model/size_check.h"

namespace bascule {
namespace {

constexpr std::array kArchitectures = {&kLlama,  &kMistral, &kMixtral,          &kQwen2, &kQwen3,      &kQwen3Moe,
                                       &kGemma2, &kGemma3,  &kGemma3WithImages, &kPhi3,  &kDeepseekV2, &kDeepseekV3};

}  // namespace

std::span<const Architecture* const> Architectures() { return kArchitectures; }

Status SetDenseLayers(ModelConfig& config, const std::function<bool(std::int64_t layer)>& is_dense) {
  if (config.layers > kLayersMax) {
    return BadConfig("num_hidden_layers", fmt::format("got {}, most {}", config.layers, kLayersMax));
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (is_dense(layer)) config.experts.dense_layers.push_back(layer);
  }
  return OkStatus();
}

Result<const Architecture*> FindArchitecture(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Architecture* architecture : kArchitectures) {
    if (architecture->name == name) return architecture;
    names.push_back(architecture->name);
  }
  SortByDistance(name, names);
  return Status::Unimplemented("unknown_architecture", fmt::format("architectures: got {}, supported: {}",
                                                                   name.substr(0, 80), fmt::join(names, ", ")));
}

}  // namespace bascule
