#include "bridge/bucket/bucket_format.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/checked_math.h"

namespace bascule {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written in native order, which is little-endian");

// Offsets of the fields; docs/protocol.md has the same table.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kFlagsAt = 6;
constexpr std::size_t kSessionAt = 8;
constexpr std::size_t kBucketAt = 16;
constexpr std::size_t kAttemptAt = 20;
constexpr std::size_t kSliceCountAt = 24;
constexpr std::size_t kPayloadBytesAt = 32;
constexpr std::size_t kPayloadChecksumAt = 40;
constexpr std::size_t kHeaderChecksumAt = 56;

constexpr std::uint16_t kHasChecksum = 1;
constexpr std::int64_t kDigestBytes = 32;
static_assert(sizeof(TensorDigest) == kDigestBytes);

template <typename T>
void Put(std::span<std::byte> bytes, std::size_t at, T value) {
  CHECK(at + sizeof value <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <typename T>
T Get(std::span<const std::byte> bytes, std::size_t at) {
  CHECK(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::uint64_t Checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::int64_t DigestsEnd(std::int64_t slice_count) { return kBucketHeaderBytes + slice_count * kDigestBytes; }

std::size_t DigestAt(std::int64_t index) { return static_cast<std::size_t>(DigestsEnd(index)); }

}  // namespace

std::int64_t PayloadOffset(std::int64_t slice_count) { return RoundUp(DigestsEnd(slice_count), kBucketHeaderBytes); }

std::int64_t FrameBytes(std::int64_t slice_count, std::int64_t payload_bytes) {
  return PayloadOffset(slice_count) + payload_bytes;
}

void SealBucketFrame(BucketHeader header, std::span<std::byte> frame, PayloadPlace place) {
  const std::int64_t in_frame = place == PayloadPlace::kInFrame ? header.payload_bytes : 0;
  CHECK(std::cmp_equal(frame.size(), FrameBytes(header.slice_count, in_frame)));
  const auto padding_at = static_cast<std::size_t>(DigestsEnd(header.slice_count));
  const auto payload_at = static_cast<std::size_t>(PayloadOffset(header.slice_count));
  std::memset(frame.data() + padding_at, 0, payload_at - padding_at);

  const std::span<std::byte> bytes = frame.first<kBucketHeaderBytes>();
  std::memset(bytes.data(), 0, bytes.size());
  Put(bytes, kMagicAt, kBucketMagic);
  Put(bytes, kVersionAt, kBucketFormatVersion);
  Put(bytes, kFlagsAt, header.has_checksum ? kHasChecksum : std::uint16_t{0});
  Put(bytes, kSessionAt, header.session.value);
  Put(bytes, kBucketAt, header.bucket);
  Put(bytes, kAttemptAt, header.attempt);
  Put(bytes, kSliceCountAt, header.slice_count);
  Put(bytes, kPayloadBytesAt, header.payload_bytes);
  if (header.has_checksum) Put(bytes, kPayloadChecksumAt, Checksum(frame.subspan<kBucketHeaderBytes>()));
  Put(bytes, kHeaderChecksumAt, Checksum(bytes.first<kHeaderChecksumAt>()));
}

void WriteSliceDigest(std::span<std::byte> frame, std::int64_t index, const TensorDigest& digest) {
  Put(frame, DigestAt(index), digest.lane);
}

TensorDigest ReadSliceDigest(std::span<const std::byte> frame, std::int64_t index) {
  TensorDigest digest;
  digest.lane = Get<decltype(digest.lane)>(frame, DigestAt(index));
  return digest;
}

Result<BucketHeader> ParseBucketHeader(std::span<const std::byte> frame, PayloadPlace place) {
  if (frame.size() < static_cast<std::size_t>(kBucketHeaderBytes)) {
    return Status::DataLoss("short_header", fmt::format("got={} want={}", frame.size(), kBucketHeaderBytes));
  }
  std::array<std::byte, kBucketHeaderBytes> copy;
  std::memcpy(copy.data(), frame.data(), copy.size());
  const std::span<const std::byte> bytes(copy);

  if (const auto magic = Get<std::uint32_t>(bytes, kMagicAt); magic != kBucketMagic) {
    return Status::DataLoss("bad_magic", fmt::format("got={:#010x} want={:#010x}", magic, kBucketMagic));
  }
  const auto version = Get<std::uint16_t>(bytes, kVersionAt);
  if (version != kBucketFormatVersion) {
    return Status::DataLoss("bad_bucket_version", fmt::format("got={} want={}", version, kBucketFormatVersion));
  }
  const auto checksum = Get<std::uint64_t>(bytes, kHeaderChecksumAt);
  if (const std::uint64_t want = Checksum(bytes.first<kHeaderChecksumAt>()); checksum != want) {
    return Status::DataLoss("header_checksum", fmt::format("got={:#018x} want={:#018x}", checksum, want));
  }
  const auto flags = Get<std::uint16_t>(bytes, kFlagsAt);
  if ((flags & ~kHasChecksum) != 0) {
    return Status::DataLoss("bad_bucket_version", fmt::format("unknown flags={:#06x}", flags));
  }

  BucketHeader header;
  header.session = SessionId{Get<std::uint64_t>(bytes, kSessionAt)};
  header.bucket = Get<std::uint32_t>(bytes, kBucketAt);
  header.attempt = Get<std::uint32_t>(bytes, kAttemptAt);
  header.slice_count = Get<std::uint32_t>(bytes, kSliceCountAt);
  header.payload_bytes = Get<std::int64_t>(bytes, kPayloadBytesAt);
  header.has_checksum = (flags & kHasChecksum) != 0;
  header.payload_checksum = Get<std::uint64_t>(bytes, kPayloadChecksumAt);

  // Subtracting keeps this free of overflow whatever the peer wrote: PayloadOffset of 32 bits is below 2^38.
  const auto frame_bytes = static_cast<std::int64_t>(frame.size());
  const std::int64_t in_frame = place == PayloadPlace::kInFrame ? header.payload_bytes : 0;
  if (header.payload_bytes < 0 || in_frame != frame_bytes - PayloadOffset(header.slice_count)) {
    return Status::DataLoss("bad_frame_size", fmt::format("frame={} slices={} payload={}", frame_bytes,
                                                          header.slice_count, header.payload_bytes));
  }
  return header;
}

Status CheckPayload(const BucketHeader& header, std::span<const std::byte> frame) {
  if (!header.has_checksum) return OkStatus();
  const std::uint64_t checksum = Checksum(frame.subspan<kBucketHeaderBytes>());
  if (checksum == header.payload_checksum) return OkStatus();
  return Status::DataLoss("payload_checksum", fmt::format("bucket={} got={:#018x} want={:#018x}", header.bucket,
                                                          checksum, header.payload_checksum));
}

}  // namespace bascule
