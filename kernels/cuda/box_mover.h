// What a warp does with a segment (box_walk.h): loads it, and stores or digests it, or both.
//
// Thread-safety: for the threads of one block.
#pragma once

#include <cstdint>

#include "kernels/cuda/box_walk.h"

namespace bascule::cuda_internal {

template <bool kDigest>
class BoxMover {
 public:
  // `word_keys` is the table of ComputeWordKeys, in shared memory; null without a digest. Nothing is stored unless
  // `stores`.
  __device__ BoxMover(const MoveBatch& batch, const MoveEntry& entry, bool stores, const std::uint32_t* word_keys)
      : batch_(batch), entry_(entry), stores_(stores), word_keys_(word_keys) {}

  // By every lane of the warp.
  __device__ void Tile(std::int64_t tile) {
    switch (entry_.conversion) {
      case Conversion::kF32ToBf16:
        return TileOf<Narrowed>(tile);
      case Conversion::kBf16ToF32:
        return TileOf<Widened>(tile);
      default:
        return TileOf<Same<std::uint8_t>>(tile);
    }
  }
  __device__ const DigestSums& total() const { return total_; }

 private:
  static constexpr int kAtOnce = 4;  // loads that a thread has under way

  template <typename Source>
  __device__ void TileOf(std::int64_t tile) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t first = tile * entry_.tile_segments;
    const bool mine = lane < entry_.tile_segments;
    const Segment own = mine ? FindSegment<kDigest>(batch_, entry_, first + lane) : Segment{};
    if (entry_.lane_each) return Parts<Source>(own, 0, kPieceBytes);
    for (int s = 0; s < entry_.tile_segments; ++s) {
      const Segment segment = Shared<kDigest>(own, s);
      if (segment.begin == segment.end) continue;
      if (Aligned<Source>(segment)) {
        WholePieces<Source>(segment, lane);
      } else {
        Parts<Source>(segment, lane * kPieceBytes, kWarp * kPieceBytes);
      }
    }
  }

  // Whether 16 bytes of the logical tensor lie at 16-byte boundaries (8 of them, or 32, of a source that is converted).
  template <typename Source>
  __device__ bool Aligned(const Segment& segment) const {
    constexpr std::uint64_t kMask = Source::kItemBytes < static_cast<int>(sizeof(typename Source::Converted)) ? 7 : 15;
    const std::uint64_t source = segment.source - static_cast<std::uint64_t>(SourceBytes<Source>(segment.begin));
    const std::uint64_t target = segment.target - static_cast<std::uint64_t>(segment.begin);
    return (entry_.fills || (source & kMask) == 0) && (!stores_ || (target & 15) == 0);
  }

  // The pieces that lie in the segment whole; lanes 0 and 1 then see to what is left at its ends.
  template <typename Source>
  __device__ void WholePieces(const Segment& segment, int lane) {
    const int first = (segment.begin + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
    const int last = segment.end / kPieceBytes * kPieceBytes;
    DigestSums sums;
    for (int at = first + lane * kPieceBytes; at < last; at += kAtOnce * kWarp * kPieceBytes) {
      Piece pieces[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int here = at + i * kWarp * kPieceBytes;
        if (here < last) pieces[i] = entry_.fills ? Filled() : Source::Load(From<Source>(segment, here));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int here = at + i * kWarp * kPieceBytes;
        if (here >= last) continue;
        if (stores_) StoreStreaming(pieces[i], Target(segment, here));
        if constexpr (kDigest) AddPiece(word_keys_, here / 4, pieces[i], sums);
      }
    }
    if (lane == 0 && segment.begin < first) Part<Source>(segment, first - kPieceBytes, sums);
    if (lane == 1 && last >= first && last < segment.end) Part<Source>(segment, last, sums);
    if constexpr (kDigest) CloseChunk(segment.chunk_key, sums, total_);
  }

  // Pieces from `first` after the segment's first one on, `step` apart, item by item.
  template <typename Source>
  __device__ void Parts(const Segment& segment, int first, int step) {
    DigestSums sums;
    for (int at = segment.begin / kPieceBytes * kPieceBytes + first; at < segment.end; at += step) {
      Part<Source>(segment, at, sums);
    }
    if constexpr (kDigest) CloseChunk(segment.chunk_key, sums, total_);
  }

  // What the segment has of the piece at `at`, which may be all of it.
  template <typename Source>
  __device__ void Part(const Segment& segment, int at, DigestSums& sums) {
    const int first = std::max(segment.begin - at, 0), last = std::min(segment.end - at, int{kPieceBytes});
    Piece piece;
    if constexpr (sizeof(typename Source::Converted) > 1) {
      piece = PartOf<Source>(segment, at, first, last);
    } else if (entry_.item_bytes == 1) {
      piece = PartOf<Same<std::uint8_t>>(segment, at, first, last);
    } else if (entry_.item_bytes == 2) {
      piece = PartOf<Same<std::uint16_t>>(segment, at, first, last);
    } else {
      piece = PartOf<Same<std::uint32_t>>(segment, at, first, last);  // eight bytes are two words
    }
    if constexpr (kDigest) AddPiece(word_keys_, at / 4, piece, sums);
  }
  template <typename Source>
  __device__ Piece PartOf(const Segment& segment, int at, int first, int last) const {
    Piece piece = entry_.fills ? Filled() : LoadPart<Source>(From<Source>(segment, at), first, last);
    if (entry_.fills) KeepBytes(piece, first, last);
    if (stores_) StorePart<typename Source::Converted>(piece, Target(segment, at), first, last);
    return piece;
  }
  __device__ Piece Filled() const {
    const auto low = static_cast<std::uint32_t>(entry_.element),
               high = static_cast<std::uint32_t>(entry_.element >> 32);
    return {{low, high, low, high}};
  }

  template <typename Source>
  __device__ static std::int64_t SourceBytes(int converted_bytes) {
    return converted_bytes / static_cast<int>(sizeof(typename Source::Converted)) * Source::kItemBytes;
  }
  // Addresses of the piece at `at`. For a piece that begins before the segment it is only counted from.
  template <typename Source>
  __device__ static const std::byte* From(const Segment& segment, int at) {
    const std::int64_t after = SourceBytes<Source>(at - segment.begin);
    return reinterpret_cast<const std::byte*>(segment.source + static_cast<std::uint64_t>(after));
  }
  __device__ static std::byte* Target(const Segment& segment, int at) {
    return reinterpret_cast<std::byte*>(segment.target + static_cast<std::uint64_t>(std::int64_t{at} - segment.begin));
  }

  const MoveBatch& batch_;
  const MoveEntry& entry_;
  const bool stores_;
  const std::uint32_t* const word_keys_;
  DigestSums total_;
};

}  // namespace bascule::cuda_internal
