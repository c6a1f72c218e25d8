// Finds which logical tensor, or which other spelling of some, a stored name means.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "model/model_table.h"

namespace bascule {

class NameResolver {
 public:
  explicit NameResolver(const ModelTable& table);  // outlives this

  struct Resolved {
    std::string name;                        // canonical where the name is known, else without wrappers
    const LogicalTensor* logical = nullptr;  // the tensor of that name,
    const TableTensor* spelling = nullptr;   // or the spelling of that name; null for names that are not known
  };

  // Takes off what wrappers put into names, at any depth ("_orig_mod.") or in front ("module.", "base_model.model."),
  // and adds, drops or moves the prefixes that a decoder has alone and inside a model with images ("model.",
  // "language_model."). A name that is known as it stands is never changed.
  Resolved Resolve(std::string_view stored);

  // Look-ups so far: a few per name, whatever the number of names.
  std::int64_t lookups() const { return lookups_; }

 private:
  bool Find(std::string name, Resolved& resolved);

  std::unordered_map<std::string_view, Resolved> known_;
  std::int64_t lookups_ = 0;
};

// Tensors that follow from the config (rotary tables), which some checkpoints store all the same.
bool IsDerivedBuffer(std::string_view canonical);

}  // namespace bascule
