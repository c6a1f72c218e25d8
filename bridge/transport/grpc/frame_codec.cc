#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <utility>

#include "bridge/transport/grpc/frame_codec_internal.h"

namespace bascule {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr std::uint32_t kIndexTag =
    WireFormatLite::MakeTag(v1::Frame::kIndexFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr std::uint32_t kFrameBytesTag =
    WireFormatLite::MakeTag(v1::Frame::kFrameBytesFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr std::uint32_t kPieceTag =
    WireFormatLite::MakeTag(v1::Frame::kPieceFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

constexpr std::array kVerdicts = {
    std::pair{BucketVerdict::kGood, v1::FrameAck::VERDICT_GOOD},
    std::pair{BucketVerdict::kDuplicate, v1::FrameAck::VERDICT_DUPLICATE},
    std::pair{BucketVerdict::kDamaged, v1::FrameAck::VERDICT_DAMAGED},
    std::pair{BucketVerdict::kFenced, v1::FrameAck::VERDICT_FENCED},
};

}  // namespace

v1::RouteHello ToProto(const RouteHello& hello) {
  v1::RouteHello proto;
  proto.set_connection(hello.connection);
  proto.set_sender_rank(hello.route.sender_rank);
  proto.set_engine_rank(hello.route.engine_rank);
  proto.set_frame_bytes(hello.frame_bytes);
  proto.set_credits(hello.credits);
  return proto;
}

RouteHello FromProto(const v1::RouteHello& proto) {
  return RouteHello{.connection = proto.connection(),
                    .route = {proto.sender_rank(), proto.engine_rank()},
                    .frame_bytes = proto.frame_bytes(),
                    .credits = proto.credits()};
}

v1::FrameAck ToProto(std::uint64_t index, const BucketAck& ack) {
  v1::FrameAck proto;
  proto.set_index(static_cast<std::uint32_t>(index));
  proto.set_bucket(ack.bucket);
  proto.set_attempt(ack.attempt);
  for (const auto& [ours, theirs] : kVerdicts) {
    if (ours == ack.verdict) proto.set_verdict(theirs);
  }
  return proto;
}

Result<BucketAck> FromProto(const v1::FrameAck& proto) {
  for (const auto& [ours, theirs] : kVerdicts) {
    if (theirs == proto.verdict()) return BucketAck{proto.bucket(), proto.attempt(), ours};
  }
  return Status::DataLoss("bad_ack", fmt::format("verdict={}", static_cast<int>(proto.verdict())));
}

grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer EncodePiece(std::uint32_t index, std::uint64_t frame_bytes, std::span<std::byte> piece,
                             std::shared_ptr<const FrameArena> arena) {
  std::array<std::uint8_t, 64> head;
  std::uint8_t* end = head.data();
  end = CodedOutputStream::WriteVarint32ToArray(kIndexTag, end);
  end = CodedOutputStream::WriteVarint32ToArray(index, end);
  end = CodedOutputStream::WriteVarint32ToArray(kFrameBytesTag, end);
  end = CodedOutputStream::WriteVarint64ToArray(frame_bytes, end);
  end = CodedOutputStream::WriteVarint32ToArray(kPieceTag, end);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<std::uint32_t>(piece.size()), end);
  const grpc::Slice head_slice(head.data(), static_cast<std::size_t>(end - head.data()));
  if (piece.empty()) return grpc::ByteBuffer(&head_slice, 1);

  using Keeper = std::shared_ptr<const FrameArena>;
  const grpc::Slice slices[] = {
      head_slice, grpc::Slice(
                      piece.data(), piece.size(), [](void* keeper) { delete static_cast<Keeper*>(keeper); },
                      new Keeper(std::move(arena)))};
  return grpc::ByteBuffer(slices, std::size(slices));
}

std::optional<RouteHello> DecodeHello(grpc::ByteBuffer& message) {
  grpc::ProtoBufferReader reader(&message);
  v1::Frame frame;
  if (!reader.status().ok() || !frame.ParseFromZeroCopyStream(&reader) || !frame.has_hello()) return std::nullopt;
  return FromProto(frame.hello());
}

bool PieceDecoder::ReadHead(PieceHead& head) {
  if (!reader_.status().ok()) return false;
  while (const std::uint32_t tag = input_.ReadTag()) {
    std::uint32_t length = 0;
    switch (tag) {
      case kIndexTag:
        if (!input_.ReadVarint32(&head.index)) return false;
        break;
      case kFrameBytesTag:
        if (!input_.ReadVarint64(&head.frame_bytes)) return false;
        break;
      case kPieceTag:
        if (!input_.ReadVarint32(&length)) return false;
        head.piece_bytes = length;
        has_piece_ = true;
        return true;
      default:
        return false;
    }
  }
  // Protobuf leaves an empty piece out.
  return input_.ConsumedEntireMessage();
}

bool PieceDecoder::ReadPiece(std::span<std::byte> target) {
  if (!has_piece_) return target.empty();
  // kPieceBytes is below what an int holds, and so is every message that gRPC lets in.
  return input_.ReadRaw(target.data(), static_cast<int>(target.size())) && input_.ReadTag() == 0 &&
         input_.ConsumedEntireMessage();
}

}  // namespace bascule
