// Arithmetic on numbers that come from files and peers: an overflow is an answer, never a wrap.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace bascule {

template <std::integral T>
[[nodiscard]] std::optional<T> CheckedAdd(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
[[nodiscard]] std::optional<T> CheckedMul(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

template <std::integral To, std::integral From>
[[nodiscard]] std::optional<To> CheckedCast(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

// The product of all `factors`; 1 for none. No value when a factor is negative or the product overflows.
[[nodiscard]] inline std::optional<std::int64_t> CheckedProduct(std::span<const std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor < 0) return std::nullopt;
    const std::optional<std::int64_t> next = CheckedMul(product, factor);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

inline std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace bascule
