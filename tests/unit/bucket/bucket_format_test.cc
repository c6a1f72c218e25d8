#include "bridge/bucket/bucket_format.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/hex.h"

namespace bascule {
namespace {

// A frame packed by hand in Python (struct.pack of the table in docs/protocol.md, checksums by the xxhash package):
// session 0x1122334455667788, bucket 7, attempt 1, three slices, 70 payload bytes 0, 1, 2...; lane l of the digest of
// slice s is 16 * (s + 1) + l + 1.
constexpr std::string_view kHandMadeHeader =
    "4253424b010001008877665544332211070000000100000003000000000000004600000000000000facce955cbc295070000000000000000"
    "c4760a76d7948da2";

std::vector<std::byte> Bytes(std::string_view hex) { return BytesOfHex(hex).value(); }

void AppendNumber(std::vector<std::byte>& bytes, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<std::byte>(number >> shift & 0xff));
}

std::vector<std::byte> HandMadeFrame() {
  std::vector<std::byte> frame = Bytes(kHandMadeHeader);
  for (std::uint64_t slice = 1; slice <= 3; ++slice) {
    for (std::uint64_t lane = 1; lane <= 4; ++lane) AppendNumber(frame, 16 * slice + lane);
  }
  frame.resize(192);
  for (int i = 0; i < 70; ++i) frame.push_back(static_cast<std::byte>(i));
  return frame;
}

BucketHeader HandMadeValues() {
  return BucketHeader{.session = SessionId{0x1122334455667788},
                      .bucket = 7,
                      .attempt = 1,
                      .slice_count = 3,
                      .payload_bytes = 70,
                      .has_checksum = true,
                      .payload_checksum = 0x0795c2cb55e9ccfa};
}

TensorDigest DigestOf(std::uint64_t slice) {
  return TensorDigest{{16 * slice + 1, 16 * slice + 2, 16 * slice + 3, 16 * slice + 4}};
}

TEST(BucketFormatTest, AFrameMadeByHandFromTheTableParsesToItsValues) {
  const std::vector<std::byte> frame = HandMadeFrame();

  const Result<BucketHeader> header = ParseBucketHeader(frame);

  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(*header, HandMadeValues());
  EXPECT_TRUE(CheckPayload(*header, frame).ok());
  for (std::uint64_t slice = 0; slice < 3; ++slice) {
    EXPECT_EQ(ReadSliceDigest(frame, static_cast<std::int64_t>(slice)), DigestOf(slice + 1));
  }
}

TEST(BucketFormatTest, SealingGivesTheHandMadeBytesAlsoInAFrameThatWasUsedBefore) {
  const std::vector<std::byte> want = HandMadeFrame();
  std::vector<std::byte> frame(static_cast<std::size_t>(FrameBytes(3, 70)), std::byte{0xee});
  for (std::uint64_t slice = 0; slice < 3; ++slice) {
    WriteSliceDigest(frame, static_cast<std::int64_t>(slice), DigestOf(slice + 1));
  }
  std::copy_n(want.end() - 70, 70, frame.end() - 70);

  SealBucketFrame(HandMadeValues(), frame);

  EXPECT_EQ(HexOf(frame), HexOf(want));
}

TEST(BucketFormatTest, WithoutAChecksumTheFieldIsZeroAndThePayloadIsNotLookedAt) {
  std::vector<std::byte> frame = HandMadeFrame();
  BucketHeader values = HandMadeValues();
  values.has_checksum = false;

  SealBucketFrame(values, frame);
  frame.back() ^= std::byte{1};

  const Result<BucketHeader> header = ParseBucketHeader(frame);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_FALSE(header->has_checksum);
  EXPECT_EQ(header->payload_checksum, 0U);
  EXPECT_TRUE(CheckPayload(*header, frame).ok());
}

TEST(BucketFormatTest, ThePayloadBeginsOnAMultipleOf64BehindTheDigests) {
  EXPECT_EQ(PayloadOffset(0), 64);
  EXPECT_EQ(PayloadOffset(1), 128);
  EXPECT_EQ(PayloadOffset(2), 128);
  EXPECT_EQ(PayloadOffset(3), 192);
  EXPECT_EQ(FrameBytes(0, 0), 64);
  EXPECT_EQ(FrameBytes(3, 70), 262);
}

TEST(BucketFormatTest, AnySingleFlippedHeaderBitIsRefused) {
  for (std::size_t bit = 0; bit < 8 * static_cast<std::size_t>(kBucketHeaderBytes); ++bit) {
    std::vector<std::byte> frame = HandMadeFrame();
    frame[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);

    const Status status = ParseBucketHeader(frame).status();

    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << "bit " << bit;
    EXPECT_EQ(status.reason(), bit < 32   ? "bad_magic"
                               : bit < 48 ? "bad_bucket_version"
                                          : "header_checksum")
        << "bit " << bit;
  }
}

TEST(BucketFormatTest, AnySingleFlippedBitBehindTheHeaderFailsThePayloadChecksum) {
  const std::vector<std::byte> good = HandMadeFrame();
  for (std::size_t bit = 8 * static_cast<std::size_t>(kBucketHeaderBytes); bit < 8 * good.size(); ++bit) {
    std::vector<std::byte> frame = good;
    frame[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const Result<BucketHeader> header = ParseBucketHeader(frame);
    ASSERT_TRUE(header.ok()) << header.status().ToString();

    EXPECT_EQ(CheckPayload(*header, frame).reason(), "payload_checksum") << "bit " << bit;
  }
}

TEST(BucketFormatTest, AFrameCutAtAnyLengthIsRefused) {
  const std::vector<std::byte> whole = HandMadeFrame();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // A copy of exactly this length, so that a read behind its end shows under AddressSanitizer.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));

    EXPECT_EQ(ParseBucketHeader(cut).status().reason(), length < 64 ? "short_header" : "bad_frame_size") << length;
  }
}

TEST(BucketFormatTest, AFrameWhosePayloadLiesElsewhereEndsWhereItWouldBegin) {
  const std::vector<std::byte> whole = HandMadeFrame();
  const auto header = ParseBucketHeader(whole);
  ASSERT_TRUE(header.ok());
  std::vector<std::byte> head(whole.begin(), whole.begin() + PayloadOffset(header->slice_count));
  BucketHeader apart = *header;
  apart.has_checksum = false;

  SealBucketFrame(apart, head, PayloadPlace::kApart);

  const auto parsed = ParseBucketHeader(head, PayloadPlace::kApart);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->payload_bytes, header->payload_bytes);
  EXPECT_EQ(ParseBucketHeader(head).status().reason(), "bad_frame_size");
  EXPECT_EQ(ParseBucketHeader(whole, PayloadPlace::kApart).status().reason(), "bad_frame_size");
}

TEST(BucketFormatTest, AFrameWithBytesBehindItsPayloadIsRefused) {
  std::vector<std::byte> frame = HandMadeFrame();
  frame.push_back(std::byte{0});

  EXPECT_EQ(ParseBucketHeader(frame).status().reason(), "bad_frame_size");
}

// Headers with a right checksum and sizes that a peer chose to hurt, packed in Python; each is a frame of 64 bytes.
TEST(BucketFormatTest, HostileSizesAreRefusedWithoutOverflow) {
  struct Case {
    const char* what;
    std::string_view header;
  };
  const Case cases[] = {
      {"payload -1",
       "4253424b01000000010000000000000000000000000000000000000000000000ffffffffffffffff0000000000000000"
       "00000000000000001d56ad9248a566d7"},
      {"payload -2^63",
       "4253424b0100000001000000000000000000000000000000000000000000000000000000000000800000000000000000"
       "0000000000000000918b669cac609c44"},
      {"payload 2^63-1",
       "4253424b01000000010000000000000000000000000000000000000000000000ffffffffffffff7f0000000000000000"
       "0000000000000000e290f1207bab74a5"},
      {"2^32-1 slices, payload 2^63-1",
       "4253424b0100000001000000000000000000000000000000ffffffff00000000ffffffffffffff7f0000000000000000"
       "0000000000000000f6e7dec6d413667e"},
      {"2^32-1 slices, no payload",
       "4253424b0100000001000000000000000000000000000000ffffffff0000000000000000000000000000000000000000"
       "0000000000000000771d51da54bf1504"},
      {"2^32-1 slices and the negative payload that makes the sum 64",
       "4253424b0100000001000000000000000000000000000000ffffffff0000000000000000e0ffffff0000000000000000"
       "00000000000000009dcabee50ef896fe"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ParseBucketHeader(Bytes(c.header)).status().reason(), "bad_frame_size") << c.what;
  }
}

TEST(BucketFormatTest, AnUnknownFlagIsRefusedThoughTheChecksumIsRight) {
  const std::vector<std::byte> frame = Bytes(
      "4253424b0100020001000000000000000000000000000000000000000000000000000000000000000000000000000000"
      "000000000000000046989c7947f9b2af");

  EXPECT_EQ(ParseBucketHeader(frame).status().reason(), "bad_bucket_version");
}

}  // namespace
}  // namespace bascule
