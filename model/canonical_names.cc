#include <fmt/format.h>

#include <array>
#include <unordered_map>
#include <unordered_set>

#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kRotaryTable = ".rotary_emb.inv_freq";

// What wrappers put into the names of the modules they wrap, at any depth.
constexpr std::array<std::string_view, 3> kWrappers = {"_orig_mod.", "_fsdp_wrapped_module.",
                                                       "_checkpoint_wrapped_module."};
// Data-parallel wrappers wrap the whole model only; below that "module." may be a name of the model's own.
constexpr std::string_view kOuterWrapper = "module.";

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
  while (name.starts_with(kOuterWrapper)) name.erase(0, kOuterWrapper.size());
  return name;
}

class CanonicalNames {
 public:
  explicit CanonicalNames(const ModelConfig& config) : tied_head_(config.tied_head) {
    for (TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) known_.insert(std::move(tensor.name));
  }

  std::string Of(const std::string& stored) const {
    std::string name = WithoutWrappers(stored);
    if (known_.contains(name)) return name;
    // A base model without its head is saved without the prefix.
    std::string prefixed = std::string(kModelPrefix) + name;
    return known_.contains(prefixed) ? prefixed : name;
  }

  // The rotary table follows from the config; the head of a tied model is the embedding again.
  bool MayBeLeftOut(const std::string& canonical) const {
    return (tied_head_ && canonical == kHead) || canonical.ends_with(kRotaryTable);
  }

 private:
  bool tied_head_;
  std::unordered_set<std::string> known_;
};

}  // namespace

Result<Layout> CanonicalSenderLayout(const ModelConfig& config, const Layout& stored,
                                     std::vector<std::string>* ignore) {
  // The config's sizes are checked before they size anything.
  if (const Result<EngineLayout> engine = MakeEngineLayout(config, DType::kBf16); !engine.ok()) return engine.status();
  const CanonicalNames names(config);
  Layout layout = stored;
  std::unordered_map<std::string, std::string> stored_of;
  for (TensorSpec& tensor : layout.tensors) {
    const std::string stored_name = tensor.name;
    tensor.name = names.Of(stored_name);
    const auto [first, is_new] = stored_of.emplace(tensor.name, stored_name);
    if (!is_new) {
      return Status::InvalidArgument("name_collision",
                                     fmt::format("{} and {} are both {}", first->second, stored_name, tensor.name));
    }
    if (names.MayBeLeftOut(tensor.name)) ignore->push_back(tensor.name);
  }
  return layout;
}

}  // namespace bascule
