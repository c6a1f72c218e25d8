// --dtype keep|bf16|fp32, as several commands have it.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "tools/logical_checkpoint.h"

namespace bascule {

inline CLI::Option* AddDType(CLI::App& app, WantedDType& target, const std::string& what) {
  static const std::map<std::string, WantedDType> kNames = {
      {"keep", WantedDType::kKeep}, {"bf16", WantedDType::kBf16}, {"fp32", WantedDType::kF32}};
  return app.add_option("--dtype", target, what)
      ->transform(CLI::CheckedTransformer(kNames).description(""))
      ->type_name("keep|bf16|fp32")
      ->default_str("keep");
}

}  // namespace bascule
