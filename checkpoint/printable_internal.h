// Text from a file as a message may print it.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace bascule {

// Without control characters, and not endless.
inline std::string Printable(std::string_view text) {
  constexpr std::size_t kPrintedMax = 120;
  std::string printable;
  for (const char c : text.substr(0, kPrintedMax)) {
    const auto byte = static_cast<unsigned char>(c);
    printable += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text.size() > kPrintedMax ? printable + "..." : printable;
}

}  // namespace bascule
