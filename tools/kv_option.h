// --kv recompute|drain|keep|abort, as several commands have it.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "engine_side/decode/decode_engine.h"

namespace bascule {

// `target` is a KvPolicy, or an optional one.
template <typename Target>
CLI::Option* AddKvPolicy(CLI::App& app, Target& target, const std::string& what) {
  static const std::map<std::string, KvPolicy> kNames = {{"recompute", KvPolicy::kRecompute},
                                                         {"drain", KvPolicy::kDrain},
                                                         {"keep", KvPolicy::kKeep},
                                                         {"abort", KvPolicy::kAbort}};
  return app
      .add_option_function<KvPolicy>(
          "--kv", [&target](const KvPolicy& policy) { target = policy; }, what)
      ->transform(CLI::CheckedTransformer(kNames).description(""))
      ->type_name("recompute|drain|keep|abort");
}

}  // namespace bascule
