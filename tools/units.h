// Numbers as people write them on a command line, read strictly: nothing may follow, nothing overflows.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace bascule {

// "42"; no sign.
//
// InvalidArgument "usage"
Result<std::uint64_t> ParseNumber(std::string_view text);

// "500ms", "30s", "2m", "1h", also with a fraction ("1.5s"); more than zero.
//
// InvalidArgument "usage"
Result<Duration> ParseDuration(std::string_view text);

// "64MiB", "1.2GB", "4096": KiB MiB GiB are powers of 1024, kB MB GB of 1000.
//
// InvalidArgument "usage"
Result<std::int64_t> ParseBytes(std::string_view text);

// "1,2,3"; at least one.
//
// InvalidArgument "usage"
Result<std::vector<std::int32_t>> ParseTokens(std::string_view text);

}  // namespace bascule
