#include "tools/config_file.h"

#include <string>

namespace bascule {

std::vector<CLI::ConfigItem> CommandConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> read = CLI::ConfigTOML::from_config(input);
  const std::vector<CLI::App*> chosen = program_.get_subcommands();
  if (chosen.empty()) return read;
  const std::string command = chosen.front()->get_name();
  std::vector<CLI::ConfigItem> wanted;
  for (CLI::ConfigItem& item : read) {
    const bool of_program = program_.get_option_no_throw("--" + item.name) != nullptr;
    if (item.parents.empty() && !of_program) item.parents.push_back(command);
    if (item.parents.empty() || item.parents.front() == command) wanted.push_back(std::move(item));
  }
  return wanted;
}

}  // namespace bascule
