// A size of a tensor together with the rule that produced it ("kv_heads 2 * head_size 16"), so that a message about a
// wrong shape says where the expected one comes from.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "bridge/layout/dims.h"

namespace bascule {

struct Extent {
  std::int64_t value = 0;
  std::string rule;
};

Extent Named(std::string_view name, std::int64_t value);  // "hidden 64"
Extent operator*(const Extent& a, const Extent& b);
Extent operator+(const Extent& a, const Extent& b);

Dims DimsOf(std::span<const Extent> extents);
std::string RuleOf(std::span<const Extent> extents);  // "[kv_heads 2 * head_size 16, hidden 64]"

}  // namespace bascule
