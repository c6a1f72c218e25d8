// The hand-written wire code against protobuf's own.
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "bridge/transport/grpc/frame_codec_internal.h"

namespace bascule {
namespace {

std::string TextOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// A message cut into slices of `slice_bytes`, as a network may deliver it.
grpc::ByteBuffer InSlices(const std::string& text, std::size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < text.size(); at += slice_bytes) slices.emplace_back(text.substr(at, slice_bytes));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::Frame PieceOf(std::uint32_t index, std::uint64_t frame_bytes, std::size_t piece_bytes) {
  v1::Frame frame;
  frame.set_index(index);
  frame.set_frame_bytes(frame_bytes);
  std::string* const piece = frame.mutable_piece();
  for (std::size_t i = 0; i < piece_bytes; ++i) piece->push_back(static_cast<char>(i * 7));
  return frame;
}

std::span<std::byte> BytesOf(std::string& text) { return std::as_writable_bytes(std::span(text)); }

TEST(FrameCodecTest, ProtobufReadsWhatWeWrite) {
  const auto arena = std::make_shared<const FrameArena>(FrameArena::Anonymous(/*frame_bytes=*/100'000, 2).value());
  for (const std::size_t piece_bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{127}, std::size_t{128}, std::size_t{100'000}}) {
    v1::Frame want = PieceOf(/*index=*/255, /*frame_bytes=*/std::uint64_t{1} << 40, piece_bytes);
    std::memcpy(arena->frame(1).data(), want.piece().data(), piece_bytes);

    const grpc::ByteBuffer message =
        EncodePiece(255, std::uint64_t{1} << 40, arena->frame(1).first(piece_bytes), arena);

    v1::Frame got;
    ASSERT_TRUE(got.ParseFromString(TextOf(message)));
    EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString()) << piece_bytes;
  }
}

TEST(FrameCodecTest, AMessageKeepsTheArenaUntilItIsGone) {
  auto arena = std::make_shared<const FrameArena>(FrameArena::Anonymous(64, 1).value());
  const std::weak_ptr<const FrameArena> watch = arena;
  {
    const grpc::ByteBuffer message = EncodePiece(0, 64, arena->frame(0), arena);
    arena.reset();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(FrameCodecTest, WeReadWhatProtobufWritesHoweverItIsSliced) {
  v1::Frame want = PieceOf(/*index=*/3, /*frame_bytes=*/777, /*piece_bytes=*/300);
  for (const std::size_t slice_bytes :
       {std::size_t{1}, std::size_t{2}, std::size_t{5}, std::size_t{64}, std::size_t{1000}}) {
    grpc::ByteBuffer message = InSlices(want.SerializeAsString(), slice_bytes);
    PieceDecoder decoder(message);
    PieceHead head;

    ASSERT_TRUE(decoder.ReadHead(head));
    EXPECT_EQ(head.index, 3U);
    EXPECT_EQ(head.frame_bytes, 777U);
    ASSERT_EQ(head.piece_bytes, 300U);
    std::string piece(300, '\0');
    ASSERT_TRUE(decoder.ReadPiece(BytesOf(piece)));
    EXPECT_EQ(piece, want.piece());
  }
}

TEST(FrameCodecTest, AnEmptyPieceIsLeftOutAndReadAsEmpty) {
  grpc::ByteBuffer message = InSlices(PieceOf(1, 0, 0).SerializeAsString(), 64);
  PieceDecoder decoder(message);
  PieceHead head;

  ASSERT_TRUE(decoder.ReadHead(head));
  EXPECT_EQ(head.piece_bytes, 0U);
  EXPECT_TRUE(decoder.ReadPiece({}));
}

TEST(FrameCodecTest, AMessageCutAnywhereIsRefused) {
  const std::string whole = PieceOf(3, 300, 300).SerializeAsString();
  for (std::size_t length = 1; length < whole.size(); ++length) {
    grpc::ByteBuffer message = InSlices(whole.substr(0, length), 64);
    PieceDecoder decoder(message);
    PieceHead head;
    std::string piece(300, '\0');

    const bool read = decoder.ReadHead(head) && head.piece_bytes == 300 && decoder.ReadPiece(BytesOf(piece));

    EXPECT_FALSE(read) << length;
  }
}

TEST(FrameCodecTest, BytesBehindThePieceAreRefused) {
  grpc::ByteBuffer message = InSlices(PieceOf(3, 300, 300).SerializeAsString() + std::string("\x10\x01", 2), 64);
  PieceDecoder decoder(message);
  PieceHead head;
  std::string piece(300, '\0');

  ASSERT_TRUE(decoder.ReadHead(head));
  EXPECT_FALSE(decoder.ReadPiece(BytesOf(piece)));
}

TEST(FrameCodecTest, FieldsThatDoNotBelongIntoAPieceAreRefused) {
  v1::Frame late_hello = PieceOf(3, 300, 300);
  late_hello.mutable_hello()->set_credits(1);
  for (const std::string& text :
       {late_hello.SerializeAsString(), std::string("\xff\xff\xff\xff\xff\xff"), std::string("\x2a\x01x", 3)}) {
    grpc::ByteBuffer message = InSlices(text, 64);
    PieceDecoder decoder(message);
    PieceHead head;

    EXPECT_FALSE(decoder.ReadHead(head));
  }
}

TEST(FrameCodecTest, HelloAndAcknowledgementsComeBackAsTheyWere) {
  const RouteHello hello{
      .connection = 0xfedcba9876543210, .route = {7, 9}, .frame_bytes = 1 << 30, .credits = kMaxCredits};
  EXPECT_EQ(FromProto(ToProto(hello)), hello);
  for (const BucketVerdict verdict :
       {BucketVerdict::kGood, BucketVerdict::kDuplicate, BucketVerdict::kDamaged, BucketVerdict::kFenced}) {
    const BucketAck ack{.bucket = 0xffffffff, .attempt = 1, .verdict = verdict};
    EXPECT_EQ(FromProto(ToProto(5, ack)).value(), ack);
  }
  EXPECT_EQ(FromProto(v1::FrameAck()).status().reason(), "bad_ack");
}

}  // namespace
}  // namespace bascule
