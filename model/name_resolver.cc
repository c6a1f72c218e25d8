#include "model/name_resolver.h"

#include <algorithm>
#include <array>

namespace bascule {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kLanguageModel = "language_model.";

// What wrappers put into the names of the modules they wrap, at any depth.
constexpr std::array<std::string_view, 4> kWrappers = {"_orig_mod.", "_fsdp_wrapped_module.",
                                                       "_checkpoint_wrapped_module.", "base_layer."};
// These wrap the whole model only; below that "module." may be a name of the model's own.
constexpr std::array<std::string_view, 2> kOuterWrappers = {"module.", "base_model.model."};

constexpr std::array<std::string_view, 5> kDerivedBuffers = {".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq",
                                                             ".rotary_emb_local.inv_freq", ".rotary_emb.cos_cached",
                                                             ".rotary_emb.sin_cached"};

bool RemoveOuterWrapper(std::string& name) {
  for (const std::string_view wrapper : kOuterWrappers) {
    if (!name.starts_with(wrapper)) continue;
    name.erase(0, wrapper.size());
    return true;
  }
  return false;
}

std::string WithoutWrappers(std::string name) {
  for (const std::string_view wrapper : kWrappers) {
    for (std::size_t at = name.find(wrapper); at != std::string::npos; at = name.find(wrapper, at)) {
      if (at == 0 || name[at - 1] == '.') {
        name.erase(at, wrapper.size());
      } else {
        at += wrapper.size();
      }
    }
  }
  while (RemoveOuterWrapper(name)) {
  }
  return name;
}

}  // namespace

NameResolver::NameResolver(const ModelTable& table) {
  known_.reserve(table.logical.size() + table.spellings.size() + 1);
  // The head of a tied model is no tensor of its own, but its name is known.
  known_.emplace(kHeadName, Resolved{std::string(kHeadName)});
  for (const TableTensor& spelling : table.spellings) {
    known_.insert_or_assign(spelling.name, Resolved{.name = spelling.name, .spelling = &spelling});
  }
  for (const LogicalTensor& logical : table.logical) {
    known_.insert_or_assign(logical.name, Resolved{.name = logical.name, .logical = &logical});
  }
}

bool NameResolver::Find(std::string name, Resolved& resolved) {
  ++lookups_;
  const auto found = known_.find(name);
  if (found == known_.end()) return false;
  resolved = found->second;
  return true;
}

NameResolver::Resolved NameResolver::Resolve(std::string_view stored) {
  Resolved resolved;
  if (Find(std::string(stored), resolved)) return resolved;
  const std::string name = WithoutWrappers(std::string(stored));
  const std::string prefixed = std::string(kModel) + name;
  if (Find(name, resolved) || Find(prefixed, resolved)) return resolved;
  // "language_model.model.norm", "language_model.lm_head", "model.language_model.norm".
  for (const std::string& outer : {name, prefixed}) {
    const std::size_t at = outer.find(kLanguageModel);
    if (at != 0 && !(at == kModel.size() && outer.starts_with(kModel))) continue;
    const std::string inner = outer.substr(at + kLanguageModel.size());
    if (Find(inner, resolved) || Find(std::string(kModel) + inner, resolved)) return resolved;
  }
  return {.name = name};
}

bool IsDerivedBuffer(std::string_view canonical) {
  return std::ranges::any_of(kDerivedBuffers, [&](std::string_view ending) { return canonical.ends_with(ending); });
}

}  // namespace bascule
