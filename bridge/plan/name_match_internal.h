// Which logical tensor of the sender is which of the engine: by canonical name only, with an account of every name.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bridge/plan/plan.h"

namespace bascule {

struct NameMatch {
  std::vector<std::int32_t> engine_of_sender;  // per sender tensor; -1: ignored, or outside the scope
  std::vector<std::int32_t> sender_of_engine;  // per engine tensor; -1: outside the scope
  std::vector<std::int32_t> carried;           // engine tensors outside the scope, ascending
  NameSets names;
  std::int64_t pattern_tests = 0;  // how often a pattern was tried on a name
};

// `ignore` and `scope` as in PlanOptions.
//
// FailedPrecondition "tensor_missing" | "tensor_unexpected" | "ignore_matches_nothing" | "scope_matches_nothing"
Result<NameMatch> MatchNames(const std::vector<TensorSpec>& sender, const std::vector<TensorSpec>& engine,
                             const std::vector<std::string>& ignore, const std::vector<std::string>& scope = {});

// True when `pattern`, in which '*' matches any text, matches all of `name`.
bool MatchesPattern(std::string_view pattern, std::string_view name);

}  // namespace bascule
