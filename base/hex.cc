#include "base/hex.h"

namespace bascule {
namespace {

int NibbleOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string HexOf(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

Result<std::vector<std::byte>> BytesOfHex(std::string_view text) {
  if (text.size() % 2 != 0) return Status::InvalidArgument("bad_hex", fmt::format("odd length {}", text.size()));
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = NibbleOf(text[i]);
    const int low = NibbleOf(text[i + 1]);
    if (high < 0 || low < 0) return Status::InvalidArgument("bad_hex", fmt::format("not a digit at {}", i));
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return bytes;
}

}  // namespace bascule
