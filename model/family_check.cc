#include "model/family_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace bascule {
namespace {

std::string_view ModuleOf(std::string_view name) { return name.substr(0, name.rfind('.')); }

class Checker {
 public:
  Checker(const ModelTable& table, WeightSchemes schemes) : table_(table), schemes_(std::move(schemes)) {
    for (std::size_t t = 0; t < table.logical.size(); ++t) known_.emplace(table.logical[t].name, t);
  }

  Status Check(const std::vector<TensorSpec>& stored) const {
    std::vector<bool> is_stored(table_.logical.size());
    for (const TensorSpec& tensor : stored) {
      const auto found = known_.find(tensor.name);
      if (found == known_.end()) {
        RETURN_IF_ERROR(CheckUnknown(tensor.name));
        continue;
      }
      is_stored[found->second] = true;
      RETURN_IF_ERROR(CheckDType(tensor, table_.logical[found->second]));
    }
    for (const TensorFamily& family : table_.families) RETURN_IF_ERROR(CheckComplete(family, is_stored));
    return OkStatus();
  }

 private:
  Status CheckUnknown(const std::string& name) const {
    if (!EndsAsScale(name)) return OkStatus();
    return Status::InvalidArgument("unknown_scale",
                                   fmt::format("{} belongs to no weight: {}{}", name, schemes_.WhyPlain(ModuleOf(name)),
                                               IsKvScale(name) ? " and states no kv_cache_scheme" : ""));
  }

  static bool IsKvScale(std::string_view name) {
    return name.ends_with(".k_scale") || name.ends_with(".v_scale") || name.ends_with(".kv_scale");
  }

  Status CheckDType(const TensorSpec& stored, const LogicalTensor& wanted) const {
    if (std::ranges::find(wanted.dtypes, stored.dtype) != wanted.dtypes.end()) return OkStatus();
    std::vector<std::string_view> names;
    for (const DType dtype : wanted.dtypes) names.push_back(DTypeName(dtype));
    const std::string why = wanted.family >= 0 ? SchemeOf(wanted) : schemes_.WhyPlain(ModuleOf(wanted.name));
    return Status::InvalidArgument("family_dtype", fmt::format("{} is {}, may be {} ({})", stored.name,
                                                               DTypeName(stored.dtype), fmt::join(names, ", "), why));
  }

  std::string SchemeOf(const LogicalTensor& tensor) const {
    return table_.families[static_cast<std::size_t>(tensor.family)].scheme.ToString();
  }

  Status CheckComplete(const TensorFamily& family, const std::vector<bool>& is_stored) const {
    const auto there = [&](std::int32_t member) { return is_stored[static_cast<std::size_t>(member)]; };
    const auto name = [&](std::int32_t member) { return table_.logical[static_cast<std::size_t>(member)].name; };
    const auto first = std::ranges::find_if(family.members, there);
    const auto missing = std::ranges::find_if_not(family.members, there);
    if (first == family.members.end() || missing == family.members.end()) return OkStatus();
    return Status::InvalidArgument(
        "family_incomplete", fmt::format("{} ({}): {} is stored, {} is missing", family.name, family.scheme.ToString(),
                                         name(*first), name(*missing)));
  }

  const ModelTable& table_;
  const WeightSchemes schemes_;
  std::unordered_map<std::string_view, std::size_t> known_;
};

}  // namespace

std::vector<std::string> UnusedPatterns(const ModelConfig& config, const ModelTable& table) {
  const Result<ModulePatterns> patterns = ModulePatterns::Make(config.quantization.ignored);
  if (!patterns.ok() || config.quantization.ignored.empty()) return {};
  std::vector<std::string> modules = {"lm_head"};  // also where it is the embedding again
  for (const LogicalTensor& tensor : table.logical) modules.emplace_back(ModuleOf(tensor.name));
  for (const TableTensor& tensor : table.tensors) modules.emplace_back(ModuleOf(tensor.name));
  return patterns->Unused(modules);
}

Status CheckFamilies(const ModelConfig& config, const ModelTable& table, const std::vector<TensorSpec>& stored) {
  ASSIGN_OR_RETURN(WeightSchemes schemes, WeightSchemes::Make(config.quantization));
  return Checker(table, std::move(schemes)).Check(stored);
}

}  // namespace bascule
