#include "model/architectures/registry_internal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bridge/plan/nearest_name.h"

namespace bascule {
namespace {

constexpr std::array kArchitectures = {&kLlama, &kQwen3};

}  // namespace

std::span<const Architecture* const> Architectures() { return kArchitectures; }

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
