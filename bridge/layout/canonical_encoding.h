// The bytes whose SHA-256 names a layout or a plan. A number is eight bytes, little-endian (two's complement); text is
// its length and its bytes; a list is its length and its items. So no two contents share an encoding. It is hashed as
// it comes and never kept: that of a large plan has hundreds of megabytes.
//
// Thread-safety: thread-compatible.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "bridge/layout/layout.h"

namespace bascule {

class CanonicalEncoding {
 public:
  // `kind` is the first text, so that a layout never equals a plan.
  explicit CanonicalEncoding(std::string_view kind) { Text(kind); }

  template <std::integral T>
  void Number(T number) {
    AppendNumber(static_cast<std::uint64_t>(static_cast<std::int64_t>(number)));
  }
  void Text(std::string_view text);
  void Numbers(const Dims& dims);         // as a list
  void BoxOf(const Box& box);             // offset, extent
  void Tensor(const TensorSpec& tensor);  // name, dtype's name, shape
  void Hash(const Hash256& hash) { Text({reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()}); }

  Hash256 Digest();  // once

 private:
  void AppendNumber(std::uint64_t number);
  void HashPending();

  Sha256 hash_;
  std::string pending_;
};

}  // namespace bascule
