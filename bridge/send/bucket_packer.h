// Stage: send (plan -> [send] -> transport)
//
// Packs buckets of a plan from a source's memory straight into frames, converting and digesting in the same pass. What
// a slice needs (shape, places, key) is worked out once, so that a bucket costs one loop over its slices and no
// allocation.
//
// Thread-safety: thread-safe once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bridge/bucket/bucket_format.h"
#include "bridge/plan/plan.h"
#include "bridge/send/weight_source.h"
#include "kernels/box_moves.h"
#include "kernels/pack.h"

namespace bascule {

// The largest frame of the plan.
std::int64_t MaxFrameBytes(const Plan& plan);

class BucketPacker {
 public:
  // Borrows both. `source` has the plan's ranks, tensors and boxes; its tensors have the type the plan was made for or
  // already the wire type (a snapshot), and their own strides.
  BucketPacker(const Plan& plan, const WeightSource& source);

  const Plan& plan() const { return plan_; }
  const WeightSource& source() const { return source_; }
  std::int64_t FrameBytesOf(std::uint32_t bucket) const;
  std::int64_t HeadBytesOf(std::uint32_t bucket) const;  // of it, header and digests

  // Reads what `buckets`, all of ranks that the source holds, hold, for Pack to be called for each of them in this
  // order.
  std::unique_ptr<BoxReader> Read(std::span<const std::uint32_t> buckets) const;
  // Fills all FrameBytesOf(header.bucket) bytes of `frame`. `header` has session, bucket, attempt and has_checksum; the
  // sizes are filled in here. Adds the digests of slices that count to `totals`, one per plan tensor, unless it is
  // empty. Fails as `reader` does.
  Status Pack(BucketHeader header, BoxReader& reader, std::span<std::byte> frame, std::span<TensorDigest> totals) const;

  // Where a device does the packing (DevicePacker): every slice as a box, sources at their addresses, targets in the
  // payload; and then, `digests` of the slices and the payload being at hand, `frame` as Pack leaves it. Empty payload:
  // it is on its way already, and `frame` is the head alone.
  //
  // InvalidArgument "misaligned"  a tensor lies at no multiple of its element's size
  Result<BoxMoveTable> TableOf(std::uint32_t bucket) const;
  void Seal(BucketHeader header, std::span<const TensorDigest> digests, std::span<const std::byte> payload,
            std::span<std::byte> frame, std::span<TensorDigest> totals) const;
  std::size_t SliceCountOf(std::uint32_t bucket) const { return SlicesOf(bucket).size(); }
  std::int64_t PayloadBytesOf(std::uint32_t bucket) const { return plan_.buckets[bucket].payload_bytes; }

  // Instead of packing: the bucket's slices go as they lie, and `reader` gives their memory along.
  bool CanName(std::uint32_t bucket, const BoxReader& reader) const;
  // As Pack, for a frame of header and digests only, all of `frame`; `payload` becomes where the slices lie.
  Status Name(BucketHeader header, BoxReader& reader, std::span<std::byte> frame, std::vector<BoxView>& payload,
              std::span<TensorDigest> totals) const;

 private:
  struct PreparedSlice {
    SourceBox source;
    BoxPlace logical;
    Conversion conversion = Conversion::kNone;
    std::int32_t tensor = 0;
    bool counts = true;
    std::int64_t begin = 0;  // in the payload
    std::int64_t end = 0;
  };
  PreparedSlice Prepare(int sender_rank, const Slice& slice) const;
  std::span<const PreparedSlice> SlicesOf(std::uint32_t bucket) const;
  // Of rows [begin, end) of a slice's box, which lies at `box`.
  TensorDigest PackRows(const PreparedSlice& slice, const BoxView& box, std::int64_t begin, std::int64_t end,
                        std::span<std::byte> payload) const;
  TensorDigest DigestRows(const PreparedSlice& slice, const BoxView& box, std::int64_t begin, std::int64_t end) const;
  static void Note(const PreparedSlice& slice, const TensorDigest& digest, std::size_t index,
                   std::span<std::byte> frame, std::span<TensorDigest> totals);

  const Plan& plan_;
  const WeightSource& source_;
  std::vector<DigestKey> keys_;              // per plan tensor
  std::vector<PreparedSlice> slices_;        // of all buckets, one after another
  std::vector<std::size_t> first_slice_of_;  // per bucket, and the end
};

}  // namespace bascule
