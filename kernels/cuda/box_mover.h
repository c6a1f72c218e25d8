// What a warp does with a segment (box_walk.h): loads it, and stores or digests it, or both.
//
// Thread-safety: for the threads of one block.
#pragma once

#include <cstdint>

#include "kernels/cuda/box_walk.h"

namespace bascule::cuda_internal {

template <bool kStore, bool kDigest>
class BoxMover {
 public:
  // `word_keys` is the table of ComputeWordKeys, in shared memory; null without a digest.
  __device__ BoxMover(const MoveBatch& batch, const MoveEntry& entry, const std::uint32_t* word_keys)
      : batch_(batch), entry_(entry), word_keys_(word_keys) {}

  // By every lane of the warp.
  __device__ void Tile(std::int64_t tile) {
    switch (entry_.conversion) {
      case Conversion::kF32ToBf16:
        return TileOf<Narrowed>(tile);
      case Conversion::kBf16ToF32:
        return TileOf<Widened>(tile);
      default:
        break;
    }
    switch (entry_.item_bytes) {
      case 1:
        return TileOf<Same<std::uint8_t>>(tile);
      case 2:
        return TileOf<Same<std::uint16_t>>(tile);
      default:
        return TileOf<Same<std::uint32_t>>(tile);  // eight bytes are two words
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
    constexpr auto kConverted = static_cast<int>(sizeof(typename Source::Converted));
    constexpr int kMask = Source::kItemBytes < kConverted ? 7 : 15;
    const auto begin = static_cast<std::uint64_t>(segment.begin);
    const bool source = entry_.fills || ((segment.source - begin / kConverted * Source::kItemBytes) & kMask) == 0;
    return source && (!kStore || ((segment.target - begin) & 15) == 0);
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
        if (here < last) pieces[i] = LoadWhole<Source>(segment, here);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int here = at + i * kWarp * kPieceBytes;
        if (here >= last) continue;
        if constexpr (kStore) StoreStreaming(pieces[i], Target(segment, here));
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

  template <typename Source>
  __device__ void Part(const Segment& segment, int at, DigestSums& sums) {
    using Item = typename Source::Converted;
    const int first = std::max(segment.begin - at, 0), last = std::min(segment.end - at, int{kPieceBytes});
    const Piece piece =
        entry_.fills ? FilledPart(first, last) : LoadPart<Source>(From<Source>(segment, at), first, last);
    if constexpr (kStore) StorePart<Item>(piece, Target(segment, at), first, last);
    if constexpr (kDigest) AddPiece(word_keys_, at / 4, piece, sums);
  }

  template <typename Source>
  __device__ Piece LoadWhole(const Segment& segment, int at) const {
    return entry_.fills ? FilledPart(0, kPieceBytes) : Source::Load(From<Source>(segment, at));
  }
  __device__ Piece FilledPart(int first, int last) const {
    Piece piece;
    for (int i = 0; i < kPieceBytes; ++i) {
      const auto byte = static_cast<std::uint32_t>(entry_.element >> i % 8 * 8 & 0xff);
      if (i >= first && i < last) piece.word[i / 4] |= byte << i % 4 * 8;
    }
    return piece;
  }

  // Addresses of the piece at `at`. For a piece that begins before the segment it is only counted from.
  template <typename Source>
  __device__ static const std::byte* From(const Segment& segment, int at) {
    constexpr auto kConverted = static_cast<int>(sizeof(typename Source::Converted));
    const std::int64_t items = (at - segment.begin) / kConverted;
    return reinterpret_cast<const std::byte*>(segment.source + static_cast<std::uint64_t>(items * Source::kItemBytes));
  }
  __device__ static std::byte* Target(const Segment& segment, int at) {
    return reinterpret_cast<std::byte*>(segment.target + static_cast<std::uint64_t>(std::int64_t{at} - segment.begin));
  }

  const MoveBatch& batch_;
  const MoveEntry& entry_;
  const std::uint32_t* const word_keys_;
  DigestSums total_;
};

}  // namespace bascule::cuda_internal
