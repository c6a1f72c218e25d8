// Stage: bucket (plan -> [bucket] -> transport)
//
// The bytes of a bucket on a wire or in shared memory; docs/protocol.md has the table. Little-endian:
//
//   header      64 bytes (BucketHeader)
//   digests     32 bytes a slice, in the order of the plan: the sender's digest of its own elements
//   padding     zeros up to a multiple of 64
//   payload     the slices, each at its planned offset; gaps are zero
//
// Everything in a frame is hostile until checked. The header carries its own checksum; the payload's checksum (XXH3-64)
// is there on wire transports and zero on memory transports, which rely on the slice digests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "kernels/digest.h"

namespace bascule {

inline constexpr std::int64_t kBucketHeaderBytes = 64;
inline constexpr std::uint32_t kBucketMagic = 0x4b425342;  // "BSBK"
inline constexpr std::uint16_t kBucketFormatVersion = 1;

struct BucketHeader {
  SessionId session;
  std::uint32_t bucket = 0;   // index into Plan::buckets
  std::uint32_t attempt = 0;  // 0 first, 1 sent again
  std::uint32_t slice_count = 0;
  std::int64_t payload_bytes = 0;
  bool has_checksum = false;
  std::uint64_t payload_checksum = 0;  // of digests, padding and payload
  friend bool operator==(const BucketHeader&, const BucketHeader&) = default;
};

// Where the payload begins: header and digests, rounded up to 64.
std::int64_t PayloadOffset(std::int64_t slice_count);
// The whole frame.
std::int64_t FrameBytes(std::int64_t slice_count, std::int64_t payload_bytes);

// Where a frame's payload is: in it, or elsewhere in the same process (BoxView): then the frame ends where it would
// begin.
enum class PayloadPlace { kInFrame, kApart };

// Writes the 64 header bytes and the padding. `frame` is FrameBytes long and its digests and payload are in place; when
// has_checksum is set the checksum is computed here (payload_checksum is not read).
void SealBucketFrame(BucketHeader header, std::span<std::byte> frame, PayloadPlace place = PayloadPlace::kInFrame);

// Slice digest `index` of a frame whose counts were checked.
void WriteSliceDigest(std::span<std::byte> frame, std::int64_t index, const TensorDigest& digest);
TensorDigest ReadSliceDigest(std::span<const std::byte> frame, std::int64_t index);

// Parses a *copy* of the header bytes, so that a producer cannot change them afterwards, and checks sizes against the
// frame. Never reads outside it.
//
// DataLoss "short_header" | "bad_magic" | "bad_bucket_version" | "header_checksum" | "bad_frame_size"
Result<BucketHeader> ParseBucketHeader(std::span<const std::byte> frame, PayloadPlace place = PayloadPlace::kInFrame);

// DataLoss "payload_checksum"  when has_checksum is set and the bytes differ
Status CheckPayload(const BucketHeader& header, std::span<const std::byte> frame);

}  // namespace bascule
