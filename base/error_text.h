// What peers have to say of their failures is kept, shown and passed on; so it has a bound.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"

namespace bascule {

// At most `bytes` of `text`, without half a character of UTF-8 at the end.
std::string_view BeginningOf(std::string_view text, std::size_t bytes);

// The same error with at most so many bytes of its message. OK stays OK.
Status WithShortText(const Status& status, std::size_t bytes);

}  // namespace bascule
