// Bytes as lower-case hexadecimal text.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bascule {

std::string HexOf(std::span<const std::byte> bytes);

// InvalidArgument "bad_hex"  odd length, or a character outside 0-9 a-f A-F
Result<std::vector<std::byte>> BytesOfHex(std::string_view text);

}  // namespace bascule
