// Random numbers that are the same on every machine (SplitMix64).
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>

namespace bascule::simulation {

inline std::uint64_t Mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(Mixed(seed + 0x9e3779b97f4a7c15ULL)) {}
  std::uint64_t Next() { return Mixed(state_ += 0x9e3779b97f4a7c15ULL); }
  // Below `bound`, which is positive.
  std::uint64_t Below(std::uint64_t bound) { return Next() % bound; }
  bool OneIn(std::uint64_t count) { return Below(count) == 0; }
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(Below(static_cast<std::uint64_t>(high - low + 1)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace bascule::simulation
