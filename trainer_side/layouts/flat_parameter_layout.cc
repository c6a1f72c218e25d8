#include "trainer_side/layouts/flat_parameter_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checked_math.h"

namespace bascule {
namespace {

constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kFlatParameter = "_fsdp_wrapped_module._flat_param";

Status BadTrainerLayout(std::string message) {
  return Status::InvalidArgument("bad_trainer_layout", std::move(message));
}

// A tensor at its place in a flat parameter.
struct FlatTensor {
  std::int32_t logical = 0;
  std::int64_t begin = 0;
  std::int64_t elements = 0;
};

// A flat parameter before it is cut.
struct FlatParameter {
  std::vector<FlatTensor> tensors;
  std::int64_t elements = 0;
};

class FlatBuilder {
 public:
  FlatBuilder(const std::vector<TensorSpec>& tensors, int ranks) {
    result_.layout.tensors = tensors;
    result_.layout.ranks.resize(static_cast<std::size_t>(ranks));
    result_.views.resize(static_cast<std::size_t>(ranks));
    for (std::size_t t = 0; t < tensors.size(); ++t) index_of_[tensors[t].name] = static_cast<std::int32_t>(t);
  }

  Status Add(const FlatUnit& unit) {
    RETURN_IF_ERROR(Check(unit));
    ASSIGN_OR_RETURN(const FlatParameter flat, Concatenate(unit));
    const auto ranks = std::ssize(result_.views);
    const std::int64_t size = flat.elements / ranks + (flat.elements % ranks == 0 ? 0 : 1);
    for (std::int64_t r = 0; r < ranks; ++r) {
      for (const FlatTensor& tensor : flat.tensors) AddViews(unit, tensor, r, size);
    }
    result_.shard_elements.push_back(size);
    return OkStatus();
  }

  Result<FlatLayout> Take() {
    for (const TensorSpec& tensor : result_.layout.tensors) {
      if (!seen_.contains(tensor.name)) return BadTrainerLayout(fmt::format("tensor={} is in no unit", tensor.name));
    }
    RETURN_IF_ERROR(CheckLayout(result_.layout));
    return std::move(result_);
  }

 private:
  const TensorSpec& SpecOf(std::int32_t logical) const {
    return result_.layout.tensors[static_cast<std::size_t>(logical)];
  }

  Status Check(const FlatUnit& unit) {
    if (unit.tensors.empty()) return BadTrainerLayout(fmt::format("unit={} has no tensors", unit.name));
    if (unit.alignment < 1) return BadTrainerLayout(fmt::format("unit={} alignment={}", unit.name, unit.alignment));
    const TensorSpec* first = nullptr;
    for (const std::string& name : unit.tensors) {
      const auto found = index_of_.find(name);
      if (found == index_of_.end()) return BadTrainerLayout(fmt::format("unit={} has no tensor={}", unit.name, name));
      const TensorSpec& spec = SpecOf(found->second);
      seen_.insert(spec.name);
      if (first == nullptr) first = &spec;
      if (spec.dtype == first->dtype) continue;
      return Status::InvalidArgument(
          "mixed_dtypes", fmt::format("unit={} cannot hold both {} {} and {} {}", unit.name, DTypeName(first->dtype),
                                      first->name, DTypeName(spec.dtype), spec.name));
    }
    return OkStatus();
  }

  Result<FlatParameter> Concatenate(const FlatUnit& unit) const {
    FlatParameter flat;
    for (const std::string& name : unit.tensors) {
      const std::int32_t logical = index_of_.find(name)->second;
      const std::int64_t elements = SpecOf(logical).Elements();
      const std::int64_t past = flat.elements % unit.alignment;
      const std::optional<std::int64_t> begin = CheckedAdd(flat.elements, past == 0 ? 0 : unit.alignment - past);
      const std::optional<std::int64_t> end = begin ? CheckedAdd(*begin, elements) : std::nullopt;
      if (!end) return BadTrainerLayout(fmt::format("unit={} has more than 2^63 elements", unit.name));
      flat.tensors.push_back({logical, *begin, elements});
      flat.elements = *end;
    }
    return flat;
  }

  // What rank r, which holds elements [r * size, (r + 1) * size) of the flat parameter, has of one of its tensors.
  void AddViews(const FlatUnit& unit, const FlatTensor& tensor, std::int64_t r, std::int64_t size) {
    // r * size may pass the last element by more than a number holds, on ranks that have nothing.
    const std::int64_t end_of_tensor = tensor.begin + tensor.elements;
    if (size == 0 || r > end_of_tensor / size) return;
    const std::int64_t shard = r * size;
    const std::int64_t first = std::max(shard, tensor.begin);
    const std::int64_t end = end_of_tensor - shard > size ? shard + size : end_of_tensor;
    if (first >= end) return;
    const TensorSpec& spec = SpecOf(tensor.logical);
    RankLayout& rank = result_.layout.ranks[static_cast<std::size_t>(r)];
    std::int64_t offset = first - shard;
    for (const Box& box : BoxesOfRange(spec.shape, first - tensor.begin, end - tensor.begin)) {
      rank.rows.push_back({.local = static_cast<std::int32_t>(rank.tensors.size()),
                           .local_box = Box::Whole(box.extent),
                           .logical = tensor.logical,
                           .logical_box = box});
      rank.tensors.push_back({.name = fmt::format("{}:{}{}", unit.name, spec.name, box.ToString()),
                              .dtype = spec.dtype,
                              .shape = box.extent,
                              .stride = {}});
      result_.views[static_cast<std::size_t>(r)].push_back(
          {static_cast<std::int32_t>(result_.shard_elements.size()), offset});
      offset += box.Elements();
    }
  }

  std::unordered_map<std::string_view, std::int32_t> index_of_;
  std::unordered_set<std::string_view> seen_;
  FlatLayout result_;
};

// "model.layers.3." of "model.layers.3.mlp.down_proj.weight"; nothing of what is in no layer.
std::string_view LayerOf(std::string_view name) {
  if (!name.starts_with(kLayers)) return {};
  const std::size_t end = name.find('.', kLayers.size());
  return end == std::string_view::npos ? std::string_view() : name.substr(0, end + 1);
}

}  // namespace

Result<FlatLayout> FlatParameterLayout(const std::vector<TensorSpec>& tensors, const std::vector<FlatUnit>& units,
                                       int ranks) {
  if (ranks < 1) return BadTrainerLayout(fmt::format("ranks={}", ranks));
  RETURN_IF_ERROR(CheckTensors(tensors));
  FlatBuilder builder(tensors, ranks);
  for (const FlatUnit& unit : units) RETURN_IF_ERROR(builder.Add(unit));
  return builder.Take();
}

std::vector<FlatUnit> UnitPerLayer(const std::vector<TensorSpec>& tensors) {
  std::vector<FlatUnit> units;
  std::map<std::pair<std::string_view, DType>, std::size_t> unit_of;
  std::map<std::string_view, DType> first_type;  // of each wrapper
  for (const TensorSpec& tensor : tensors) {
    const std::string_view layer = LayerOf(tensor.name);
    const auto [found, is_new] = unit_of.try_emplace({layer, tensor.dtype}, units.size());
    if (is_new) {
      const bool is_first = first_type.try_emplace(layer, tensor.dtype).second;
      units.push_back({.name = fmt::format("{}{}", layer, kFlatParameter), .tensors = {}});
      if (!is_first) units.back().name += fmt::format(".{}", DTypeName(tensor.dtype));
    }
    units[found->second].tensors.push_back(tensor.name);
  }
  return units;
}

}  // namespace bascule
