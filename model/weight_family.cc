#include "model/weight_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace bascule {
namespace {

constexpr std::array kFloats = {DType::kBf16, DType::kF32, DType::kF16, DType::kF64};
constexpr std::array kFp8 = {DType::kF8E4M3};
constexpr std::array kInt8 = {DType::kI8};
constexpr std::array kInt32 = {DType::kI32};
constexpr std::array kShape = {DType::kI64, DType::kI32};
// Exponents alone (U8, F8_E8M0) are another scheme's scales.
constexpr std::array kScales = {DType::kF32, DType::kBf16, DType::kF16};

constexpr std::array<std::string_view, 5> kScaleEndings = {"_scale", "_scale_inv", "_zero_point", "weight_shape",
                                                           "weight_g_idx"};

// As many as are needed for `all` where each stands for `many`.
Extent Grouped(const Extent& all, std::int64_t many) {
  if (many == 1) return all;
  if (many == 0) return Named("one for all", 1);
  return {(all.value + many - 1) / many, fmt::format("ceil({} / {})", all.rule, many)};
}

void AddActivations(const WeightScheme& scheme, std::vector<FamilyMember>& members) {
  if (scheme.input_scale) members.push_back({"input_scale", MemberShape::kOne, 0, 0, kScales});
  if (scheme.input_zero_point) members.push_back({"input_zero_point", MemberShape::kOne, 0, 0, kInt8});
}

}  // namespace

std::vector<Extent> FamilyMember::ShapeOf(const Extent& weight_rows, const Extent& weight_columns) const {
  switch (shape) {
    case MemberShape::kMatrix:
      return {Grouped(weight_rows, rows), Grouped(weight_columns, columns)};
    case MemberShape::kRows:
      return {weight_rows};
    case MemberShape::kOne:
      return {Named("one for all", 1)};
    case MemberShape::kWeightShape:
      return {Named("dimensions", 2)};
  }
  return {};
}

std::span<const DType> PlainDTypes() { return kFloats; }

std::vector<FamilyMember> PlainMembers() { return {{.ending = "weight", .dtypes = kFloats}}; }

FamilyMember BiasMember() { return {.ending = "bias", .shape = MemberShape::kRows, .columns = 0, .dtypes = kFloats}; }

std::vector<FamilyMember> MembersOf(const WeightScheme& scheme) {
  const std::int64_t rows = scheme.group.rows;
  const std::int64_t columns = scheme.group.columns;
  const auto grouped = [&](std::string_view ending, std::int64_t packed_rows, std::span<const DType> dtypes) {
    const bool one = rows == 0 && columns == 0;
    return FamilyMember{ending, one ? MemberShape::kOne : MemberShape::kMatrix, rows * packed_rows, columns, dtypes};
  };
  std::vector<FamilyMember> members;
  const bool packed = scheme.storage == WeightStorage::kPacked;
  const std::int64_t pack = packed ? 32 / scheme.bits : 1;
  if (packed) {
    members.push_back({.ending = "weight_packed", .columns = pack, .dtypes = kInt32});
  } else {
    members.push_back({.ending = "weight",
                       .dtypes = scheme.storage == WeightStorage::kFp8 ? std::span<const DType>(kFp8)
                                                                       : std::span<const DType>(kInt8)});
  }
  members.push_back(grouped(scheme.scale_name, 1, kScales));
  if (scheme.zero_point) {
    members.push_back(grouped("weight_zero_point", pack, packed ? std::span<const DType>(kInt32) : kInt8));
  }
  if (packed) members.push_back({"weight_shape", MemberShape::kWeightShape, 0, 0, kShape});
  AddActivations(scheme, members);
  return members;
}

bool EndsAsScale(std::string_view name) {
  return std::ranges::any_of(kScaleEndings, [name](std::string_view ending) { return name.ends_with(ending); });
}

Result<WeightSchemes> WeightSchemes::Make(const Quantization& quantization) {
  WeightSchemes schemes;
  schemes.method_ = quantization.method;
  ASSIGN_OR_RETURN(schemes.ignored_, ModulePatterns::Make(quantization.ignored));
  for (const SchemeGroup& group : quantization.groups) {
    Group made;
    std::vector<std::string> targets = group.targets;
    made.all_linears = std::erase(targets, "Linear") > 0;
    ASSIGN_OR_RETURN(made.targets, ModulePatterns::Make(targets));
    made.scheme = group.scheme;
    schemes.groups_.push_back(std::move(made));
  }
  return schemes;
}

const WeightScheme* WeightSchemes::OfModule(std::string_view engine_name, std::string_view module) const {
  if (groups_.empty() || ignored_.Find(module) != nullptr || ignored_.Find(engine_name) != nullptr) return nullptr;
  // A target by name says more than one for all linears.
  const auto named = std::ranges::find_if(groups_, [&](const Group& group) {
    return group.targets.Find(module) != nullptr || group.targets.Find(engine_name) != nullptr;
  });
  if (named != groups_.end()) return &named->scheme;
  const auto all = std::ranges::find_if(groups_, &Group::all_linears);
  return all == groups_.end() ? nullptr : &all->scheme;
}

Result<std::optional<WeightScheme>> WeightSchemes::Of(std::string_view engine_name,
                                                      std::span<const std::string> modules) const {
  const WeightScheme* first = OfModule(engine_name, modules.front());
  for (const std::string& module : modules.subspan(1)) {
    const WeightScheme* other = OfModule(engine_name, module);
    if (first == other || (first != nullptr && other != nullptr && *first == *other)) continue;
    const auto shown = [&](const std::string& name, const WeightScheme* scheme) {
      return fmt::format("{} is {}", name, scheme == nullptr ? "plain, " + WhyPlain(name) : scheme->ToString());
    };
    return Status::InvalidArgument(
        "partly_quantized",
        fmt::format("{} is one tensor: {}; {}", engine_name, shown(modules.front(), first), shown(module, other)));
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

std::string WeightSchemes::WhyPlain(std::string_view module) const {
  if (method_.empty()) return "the config has no quantization_config";
  if (const std::string* pattern = ignored_.Find(module); pattern != nullptr) {
    return fmt::format("ignored by \"{}\"", *pattern);
  }
  return fmt::format("quantization_config ({}) does not name it", method_);
}

}  // namespace bascule
