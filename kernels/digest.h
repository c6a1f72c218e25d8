// The layout-independent digest: the same number for a logical tensor however it is cut over ranks.
//
// A logical tensor's row-major bytes are read as little-endian 32-bit words w. Byte position p lies in chunk
// c = p / 4096 and word j = (p % 4096) / 4 of it. In four independent lanes l, modulo 2^64:
//
//   D[l] = sum over c of  A(c, l) * sum over j of  B(j, l) * w(c, j)
//   A(c, l) = mix(seed[l] + (c + 1) * 0x9e3779b97f4a7c15) | 1
//   B(j, l) = (mix(0x42617363756c65 + (l * 1024 + j + 1) * 0x9e3779b97f4a7c15) >> 32) | 1
//   mix = the finaliser of splitmix64 (Steele, Lea, Flood 2014)
//
// A byte that is not there counts as zero, so digests of disjoint pieces add up to the digest of the whole, also when
// a cut runs through a word. Keys are odd, so a change inside one word always shows; a random change of many words
// goes unseen with probability below 2^-128. It finds faults, not adversaries.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/box.h"

namespace bascule {

inline constexpr int kDigestLanes = 4;
inline constexpr std::int64_t kDigestChunkBytes = 4096;

// A sum: disjoint pieces add up. A value; all zero for no bytes (or zero bytes only).
struct TensorDigest {
  std::array<std::uint64_t, kDigestLanes> lane{};
  TensorDigest& operator+=(const TensorDigest& other) {
    for (std::size_t l = 0; l < lane.size(); ++l) lane[l] += other.lane[l];
    return *this;
  }
  TensorDigest& operator-=(const TensorDigest& other) {
    for (std::size_t l = 0; l < lane.size(); ++l) lane[l] -= other.lane[l];
    return *this;
  }
  friend TensorDigest operator+(TensorDigest a, const TensorDigest& b) { return a += b; }
  friend TensorDigest operator-(TensorDigest a, const TensorDigest& b) { return a -= b; }
  friend bool operator==(const TensorDigest&, const TensorDigest&) = default;
  std::string ToHex() const;  // lane 0 first, 16 digits each
};

// Per logical tensor; bridge/manifest makes it from name, dtype and shape.
struct DigestKey {
  std::array<std::uint64_t, kDigestLanes> seed{};
  friend bool operator==(const DigestKey&, const DigestKey&) = default;
};

// The digest of `bytes`, which are the logical bytes [position, position + bytes.size()). `position` >= 0.
TensorDigest DigestRunOnHost(const DigestKey& key, std::int64_t position, std::span<const std::byte> bytes);

// The digest of a box of elements of `item_bytes` each: `memory` says where the box lies from `base` on, `logical`
// where it lies in the row-major logical tensor.
TensorDigest DigestBoxOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes, const std::byte* base,
                             const BoxPlace& memory, const BoxPlace& logical);

}  // namespace bascule

// Roofline, per byte: 1 byte read, none written; 2 multiplications and 2 additions of 64 bits (4 lanes, a word each).
