// --read STRATEGY and --drop-cache, as every command has them that reads a checkpoint.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "checkpoint/read_strategy.h"
#include "tools/interrupt.h"

namespace bascule {

// --ignore-index and --lenient-trailing: for files that cannot be mended.
inline void AddLeniency(CLI::App& app, ReadOptions& target) {
  app.add_flag("--ignore-index", target.ignore_index,
               "read every .safetensors file there is, whatever the index says; tensors that are missing still count");
  app.add_flag("--lenient-trailing", target.lenient_trailing, "pass over bytes behind a file's last tensor");
}

inline void AddReadOptions(CLI::App& app, ReadOptions& target) {
  static const std::map<std::string, ReadStrategy> kNames = {{"auto", ReadStrategy::kAuto},
                                                             {"mmap", ReadStrategy::kMmap},
                                                             {"read", ReadStrategy::kRead},
                                                             {"direct", ReadStrategy::kDirect}};
  app.add_option("--read", target.strategy, "how files are read; auto goes by file system, size and free memory")
      ->transform(CLI::CheckedTransformer(kNames).description(""))
      ->type_name("auto|mmap|read|direct")
      ->default_str("auto");
  app.add_flag("--drop-cache", target.drop_cache, "let the page cache forget what was read");
  AddLeniency(app, target);
}

// The same, until Ctrl-C.
inline ReadOptions UntilInterrupted(ReadOptions options, const Interrupt& interrupt) {
  options.stop = interrupt.token();
  return options;
}

}  // namespace bascule
