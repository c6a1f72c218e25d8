#include "model/module_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace bascule {
namespace {

constexpr std::string_view kExpression = "re:";
constexpr std::array<std::string_view, 6> kWrappers = {
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module", "base_model", "language_model"};

Status BadPattern(std::string_view pattern, std::string_view what) {
  return Status::InvalidArgument("bad_config",
                                 fmt::format("quantization_config: pattern \"{}\": {}", pattern.substr(0, 80), what));
}

std::vector<std::string_view> Components(std::string_view name) {
  std::vector<std::string_view> components;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    components.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return components;
}

std::string WithoutWrappers(std::string_view pattern) {
  std::vector<std::string_view> kept;
  for (const std::string_view component : Components(pattern)) {
    if (std::ranges::find(kWrappers, component) != kWrappers.end()) continue;
    // "base_model.model.model.layers": an adapter's wrapper has a component like the model's own.
    if (component == "model" && kept == std::vector<std::string_view>{"model"}) continue;
    kept.push_back(component);
  }
  return fmt::format("{}", fmt::join(kept, "."));
}

// Calls `visit` for every run of whole components.
template <typename Visit>
void ForEachRun(std::string_view module, const Visit& visit) {
  const std::vector<std::string_view> components = Components(module);
  for (const std::string_view first : components) {
    for (const std::string_view last : components) {
      if (last.data() < first.data()) continue;
      visit(std::string(first.data(), last.data() + last.size()));
    }
  }
}

bool BeginsWithMatch(std::string_view module, const std::regex& regex) {
  return std::regex_search(module.begin(), module.end(), regex, std::regex_constants::match_continuous);
}

}  // namespace

Result<ModulePatterns> ModulePatterns::Make(const std::vector<std::string>& patterns) {
  ModulePatterns result;
  for (const std::string& pattern : patterns) {
    if (!pattern.starts_with(kExpression)) {
      const std::string plain = WithoutWrappers(pattern);
      if (plain.empty()) return BadPattern(pattern, "means no module");
      result.plain_.emplace(plain, pattern);
      continue;
    }
    try {  // The one way in which the standard library says that an expression is none.
      result.expressions_.push_back(
          {pattern, std::regex(pattern.substr(kExpression.size()),
                               std::regex::ECMAScript | std::regex::optimize | std::regex_constants::__polynomial)});
    } catch (const std::regex_error&) {
      return BadPattern(pattern, "no regular expression");
    }
  }
  return result;
}

const std::string* ModulePatterns::Find(std::string_view module) const {
  const std::string* found = nullptr;
  ForEachRun(module, [&](const std::string& run) {
    if (const auto plain = plain_.find(run); found == nullptr && plain != plain_.end()) found = &plain->second;
  });
  if (found != nullptr) return found;
  const auto expression =
      std::ranges::find_if(expressions_, [&](const Expression& e) { return BeginsWithMatch(module, e.regex); });
  return expression == expressions_.end() ? nullptr : &expression->pattern;
}

std::vector<std::string> ModulePatterns::Unused(const std::vector<std::string>& modules) const {
  auto plain = plain_;
  std::vector<std::string> unused;
  for (const std::string& module : modules) {
    ForEachRun(module, [&](const std::string& run) { plain.erase(run); });
  }
  for (const auto& [run, pattern] : plain) unused.push_back(pattern);
  for (const Expression& expression : expressions_) {
    const auto means = [&](const std::string& module) { return BeginsWithMatch(module, expression.regex); };
    if (std::ranges::none_of(modules, means)) unused.push_back(expression.pattern);
  }
  std::ranges::sort(unused);
  return unused;
}

}  // namespace bascule
