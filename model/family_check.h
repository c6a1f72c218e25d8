// A checkpoint's tensors against the families that its config says there are.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "model/model_config.h"
#include "model/model_table.h"

namespace bascule {

// `stored` are under canonical names. A family of which nothing is stored is not judged here: the planner reports what
// is missing.
//
// InvalidArgument "family_incomplete"  a quantised weight without a scale or zero point, or the other way: names both
// InvalidArgument "family_dtype"       a member, or a plain weight, is of a type that it cannot have: names all it can
// InvalidArgument "unknown_scale"      a scale or zero point that belongs to no family: why its module is plain
Status CheckFamilies(const ModelConfig& config, const ModelTable& table, const std::vector<TensorSpec>& stored);

// Patterns of modules to leave alone that mean no module of the model, sorted: a name that is spelled otherwise leaves
// a module quantised by mistake. For a warning: published lists name modules that other programs add.
std::vector<std::string> UnusedPatterns(const ModelConfig& config, const ModelTable& table);

}  // namespace bascule
