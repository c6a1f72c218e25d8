// --config FILE: options as TOML. Keys outside a section belong to the command that runs, a section [publish] to that
// command alone, so that one file can serve several; a key that the command does not have is wrong usage.
//
//   listen = "127.0.0.1:7000"
//   [publish]
//   to = ["127.0.0.1:7000"]
//
// Thread-safety: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <vector>

namespace bascule {

// `program` owns the --config option and the commands.
class CommandConfig : public CLI::ConfigTOML {
 public:
  explicit CommandConfig(const CLI::App& program) : program_(program) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  const CLI::App& program_;
};

}  // namespace bascule
