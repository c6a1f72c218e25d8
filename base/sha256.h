// SHA-256 (FIPS 180-4, through OpenSSL's libcrypto): identities of layouts, plans and versions.
//
// Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bascule {

// 32 bytes that name a content. A value; all zero means "none".
struct Hash256 {
  std::array<std::byte, 32> bytes{};
  std::string ToHex() const;
  bool IsZero() const { return *this == Hash256{}; }
  friend auto operator<=>(const Hash256&, const Hash256&) = default;
};

// Hashes text and numbers piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void Add(std::string_view text);
  void Add(std::span<const std::byte> bytes);
  void AddU64(std::uint64_t number);  // eight bytes, little-endian
  Hash256 Finish();                   // once

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Hash256 Sha256Of(std::string_view text);

}  // namespace bascule
