// Prompts whose log-probabilities a trainer has computed under the weights that it publishes: what the gate of
// `publish --policy canary` compares the canary's with.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace bascule {

struct Sentinel {
  std::vector<std::int32_t> tokens;  // two or more
  std::vector<double> logprobs;      // of every token but the first, given those before it
};

// One JSON object a line: {"tokens":[1,2,3],"logprobs":[-0.5,-2.25]}. Blank lines do not count.
//
// NotFound "no_such_file"; InvalidArgument "bad_sentinels"  names file and line
Result<std::vector<Sentinel>> ReadSentinels(const std::string& path);

// What an engine says of a sentinel's tokens, compared with what the trainer says.
//
// DataLoss "sentinel_differs"  names the sentinel, the token and both numbers; also for a NaN
Status CheckSentinel(std::size_t index, const Sentinel& sentinel, const std::vector<float>& logprobs, double bound);

}  // namespace bascule
