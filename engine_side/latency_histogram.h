// How often a duration was how long, in classes that double: enough to see a tail without keeping every one.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace bascule {

class LatencyHistogram {
 public:
  // Class i holds durations of at most 2^i microseconds and more than half of that; the last one all that are longer.
  static constexpr std::size_t kClasses = 32;
  static std::uint64_t UpToUs(std::size_t i) { return std::uint64_t{1} << i; }

  void Add(Duration duration) { AddUs(UsOf(duration)); }
  void AddUs(double us) {
    const auto whole = static_cast<std::uint64_t>(std::clamp(us, 0.0, 1e18));
    const std::uint64_t rounded_up = static_cast<double>(whole) < us ? whole + 1 : whole;
    const std::size_t i = rounded_up <= 1 ? 0 : static_cast<std::size_t>(std::bit_width(rounded_up - 1));
    ++counts_[std::min(i, kClasses - 1)];
  }
  const std::array<std::uint64_t, kClasses>& counts() const { return counts_; }

 private:
  std::array<std::uint64_t, kClasses> counts_{};
};

}  // namespace bascule
