#include "trainer_side/layouts/layout_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "trainer_side/layouts/flat_parameter_layout.h"
#include "trainer_side/layouts/megatron_layout.h"
#include "trainer_side/layouts/mesh_layout.h"
#include "trainer_side/layouts/plain_layout.h"

namespace bascule {
namespace {

Status BadSpec(std::string_view spec, std::string_view why) {
  return Status::InvalidArgument(
      "bad_trainer_layout",
      fmt::format(
          "\"{}\": {}; known: plain, fsdp, mesh:AxB, megatron:tp=N,pp=N,ep=N,etp=N,vpp=N,first=N,last=N,vocab=N", spec,
          why));
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int> Number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) return std::nullopt;
  return number;
}

Result<Layout> FromMesh(std::string_view spec, std::string_view sizes, int ranks,
                        const std::vector<TensorSpec>& tensors) {
  std::vector<int> mesh;
  std::int64_t product = 1;
  for (const std::string_view size : Split(sizes, 'x')) {
    const std::optional<int> number = Number(size);
    if (!number || product > ranks) return BadSpec(spec, "sizes like 2x2");
    product *= *number;
    mesh.push_back(*number);
  }
  if (product != ranks) return BadSpec(spec, fmt::format("{} ranks, not {}", product, ranks));
  ASSIGN_OR_RETURN(const std::vector<MeshTensor> placed, UsualPlacements(tensors, mesh));
  return MeshLayout(placed, mesh);
}

Result<MegatronParallel> ParseMegatron(std::string_view spec, std::string_view sizes) {
  MegatronParallel parallel;
  int first = 0;
  int last = 0;
  const std::map<std::string_view, int*> known = {{"tp", &parallel.tensor},
                                                  {"pp", &parallel.pipeline},
                                                  {"ep", &parallel.expert},
                                                  {"etp", &parallel.expert_tensor},
                                                  {"vpp", &parallel.virtual_stages},
                                                  {"vocab", &parallel.vocabulary_multiple},
                                                  {"first", &first},
                                                  {"last", &last}};
  for (const std::string_view part : Split(sizes, ',')) {
    if (part.empty() && sizes.empty()) break;
    const std::size_t equals = part.find('=');
    const auto found = known.find(part.substr(0, equals));
    if (equals == std::string_view::npos || found == known.end()) return BadSpec(spec, "sizes like tp=2,pp=1");
    const std::optional<int> number = Number(part.substr(equals + 1));
    if (!number) return BadSpec(spec, fmt::format("{} is no size", part));
    *found->second = *number;
  }
  parallel.first_stage_layers = first;
  parallel.last_stage_layers = last;
  return parallel;
}

}  // namespace

Result<Layout> MakeTrainerLayout(std::string_view spec, int ranks, const std::vector<TensorSpec>& tensors,
                                 const ModelConfig* config) {
  const std::size_t colon = spec.find(':');
  const std::string_view kind = spec.substr(0, colon);
  const std::string_view sizes = colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1);
  if (spec == "plain") return ReplicatedLayout(tensors, ranks);
  if (spec == "fsdp") {
    ASSIGN_OR_RETURN(FlatLayout flat, FlatParameterLayout(tensors, UnitPerLayer(tensors), ranks));
    return std::move(flat.layout);
  }
  if (kind == "mesh" && !sizes.empty()) return FromMesh(spec, sizes, ranks, tensors);
  if (kind != "megatron") return BadSpec(spec, "no such trainer layout");
  ASSIGN_OR_RETURN(const MegatronParallel parallel, ParseMegatron(spec, sizes));
  if (config == nullptr) {
    return Status::InvalidArgument("config_missing", fmt::format("\"{}\" needs the model's config.json", spec));
  }
  return MegatronLayout(*config, tensors, parallel, ranks);
}

}  // namespace bascule
