// Which modules a list of patterns means, by canonical names: the ignore lists and targets of quantised checkpoints.
//
// A plain pattern is a run of whole components of a module's name: "mlp.gate" means "model.layers.0.mlp.gate" and not
// "model.layers.0.mlp.gate_proj", "model.layers.1" everything in that layer. Components that wrappers add are left out
// first ("model.language_model.layers.0" is "model.layers.0"). "re:" and a regular expression mean the names that begin
// with a match, as Python's re.match has it; time is polynomial in the name, whatever the expression.
//
// Thread-safety: thread-safe once made.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace bascule {

class ModulePatterns {
 public:
  // InvalidArgument "bad_config"  an empty pattern, or an expression that is none: names it
  static Result<ModulePatterns> Make(const std::vector<std::string>& patterns);

  // The first plain pattern that means `module`, else the first expression; null where there is none.
  const std::string* Find(std::string_view module) const;

  // The patterns that mean none of `modules`, sorted.
  std::vector<std::string> Unused(const std::vector<std::string>& modules) const;

 private:
  struct Expression {
    std::string pattern;
    std::regex regex;
  };
  std::unordered_map<std::string, std::string> plain_;  // without wrappers: as it was given
  std::vector<Expression> expressions_;
};

}  // namespace bascule
