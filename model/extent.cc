#include "model/extent.h"

#include <fmt/format.h>

namespace bascule {
namespace {

std::string AsFactor(const std::string& rule) {
  return rule.find(" + ") == std::string::npos ? rule : fmt::format("({})", rule);
}

}  // namespace

Extent Named(std::string_view name, std::int64_t value) { return {value, fmt::format("{} {}", name, value)}; }

Extent operator*(const Extent& a, const Extent& b) {
  return {a.value * b.value, fmt::format("{} * {}", AsFactor(a.rule), AsFactor(b.rule))};
}

Extent operator+(const Extent& a, const Extent& b) { return {a.value + b.value, a.rule + " + " + b.rule}; }

Dims DimsOf(std::span<const Extent> extents) {
  Dims shape;
  for (const Extent& extent : extents) shape.push_back(extent.value);
  return shape;
}

std::string RuleOf(std::span<const Extent> extents) {
  std::string rule = "[";
  for (const Extent& extent : extents) rule += (rule.size() > 1 ? ", " : "") + extent.rule;
  return rule + "]";
}

}  // namespace bascule
