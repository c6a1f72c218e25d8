// Sixteen bytes of a logical tensor, the most that one access moves: four words of the digest, in registers.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cast.h"
#include "kernels/cuda/launch.h"

namespace bascule::cuda_internal {

inline constexpr int kPieceBytes = 16;

struct Piece {
  std::uint32_t word[4] = {};
};

// Weights pass through once: they are read and written past what decode has in the second-level cache.
__device__ inline Piece LoadStreaming(const std::byte* from) {
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from));
  return {{v.x, v.y, v.z, v.w}};
}
__device__ inline void StoreStreaming(const Piece& piece, std::byte* to) {
  __stcs(reinterpret_cast<uint4*>(to), make_uint4(piece.word[0], piece.word[1], piece.word[2], piece.word[3]));
}

// What elements go through on their way. `Load` makes a piece of the elements from `from` on, which are aligned to 16
// converted bytes; `LoadItem` makes one element.
template <typename Item>
struct Same {
  using Converted = Item;
  static constexpr int kItemBytes = sizeof(Item);
  __device__ static Piece Load(const std::byte* from) { return LoadStreaming(from); }
  __device__ static Item LoadItem(const std::byte* from) { return *reinterpret_cast<const Item*>(from); }
};
struct Narrowed {
  using Converted = std::uint16_t;
  static constexpr int kItemBytes = 4;
  __device__ static std::uint32_t Pair(std::uint32_t low, std::uint32_t high) {
    return Bf16BitsOfF32Bits(low) | std::uint32_t{Bf16BitsOfF32Bits(high)} << 16;
  }
  __device__ static Piece Load(const std::byte* from) {
    const Piece a = LoadStreaming(from), b = LoadStreaming(from + kPieceBytes);
    return {{Pair(a.word[0], a.word[1]), Pair(a.word[2], a.word[3]), Pair(b.word[0], b.word[1]),
             Pair(b.word[2], b.word[3])}};
  }
  __device__ static Converted LoadItem(const std::byte* from) {
    return Bf16BitsOfF32Bits(*reinterpret_cast<const std::uint32_t*>(from));
  }
};
struct Widened {
  using Converted = std::uint32_t;
  static constexpr int kItemBytes = 2;
  __device__ static std::uint32_t Low(std::uint32_t pair) {
    return F32BitsOfBf16Bits(static_cast<std::uint16_t>(pair & 0xffffu));
  }
  __device__ static std::uint32_t High(std::uint32_t pair) {
    return F32BitsOfBf16Bits(static_cast<std::uint16_t>(pair >> 16));
  }
  __device__ static Piece Load(const std::byte* from) {
    const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from));
    return {{Low(v.x), High(v.x), Low(v.y), High(v.y)}};
  }
  __device__ static Converted LoadItem(const std::byte* from) {
    return F32BitsOfBf16Bits(*reinterpret_cast<const std::uint16_t*>(from));
  }
};

// The bytes [first, last) of a piece, item by item; the others are zero. The loops have fixed bounds, so that a piece
// stays in registers.
template <typename Source>
__device__ inline Piece LoadPart(const std::byte* from, int first, int last) {
  constexpr int kBytes = sizeof(typename Source::Converted);
  Piece piece;
#pragma unroll
  for (int at = 0; at < kPieceBytes; at += kBytes) {
    if (at < first || at >= last) continue;
    const auto item = static_cast<std::uint32_t>(Source::LoadItem(from + at / kBytes * Source::kItemBytes));
    piece.word[at / 4] |= item << at % 4 * 8;
  }
  return piece;
}
template <typename Item>
__device__ inline void StorePart(const Piece& piece, std::byte* to, int first, int last) {
#pragma unroll
  for (int at = 0; at < kPieceBytes; at += static_cast<int>(sizeof(Item))) {
    if (at < first || at >= last) continue;
    *reinterpret_cast<Item*>(to + at) = static_cast<Item>(piece.word[at / 4] >> at % 4 * 8);
  }
}

// Clears the bytes outside [first, last).
__device__ inline void KeepBytes(Piece& piece, int first, int last) {
#pragma unroll
  for (int at = 0; at < kPieceBytes; ++at) {
    if (at < first || at >= last) piece.word[at / 4] &= ~(0xffu << at % 4 * 8);
  }
}

}  // namespace bascule::cuda_internal
