// bascule.v1.Frame on the wire, by hand where it is large: a payload is sent from where it lies and read to where it
// belongs. Protobuf's own code would copy it into a string on either side. Tests hold both against protobuf's code.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "bascule/v1/transfer.pb.h"
#include "bridge/transport/frame_arena.h"
#include "bridge/transport/transport.h"

namespace bascule {

// Pieces of frames; the message around one stays below what servers take.
inline constexpr std::size_t kPieceBytes = 4 << 20;

v1::RouteHello ToProto(const RouteHello& hello);
RouteHello FromProto(const v1::RouteHello& hello);

v1::FrameAck ToProto(std::uint64_t index, const BucketAck& ack);
// DataLoss "bad_ack"
Result<BucketAck> FromProto(const v1::FrameAck& ack);

// Any message that is small.
grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message);

// A piece whose bytes lie in `arena`, which stays for as long as gRPC needs it; they do not change until the frame is
// acknowledged.
grpc::ByteBuffer EncodePiece(std::uint32_t index, std::uint64_t frame_bytes, std::span<std::byte> piece,
                             std::shared_ptr<const FrameArena> arena);

// The hello of a first message; none when it is something else.
std::optional<RouteHello> DecodeHello(grpc::ByteBuffer& message);

// What stands before the bytes of a piece.
struct PieceHead {
  std::uint32_t index = 0;
  std::uint64_t frame_bytes = 0;
  std::size_t piece_bytes = 0;
};

// Reads one message: the head, then the piece. Hostile input ends in false. Confined to one thread.
class PieceDecoder {
 public:
  explicit PieceDecoder(grpc::ByteBuffer& message) : reader_(&message), input_(&reader_) {}
  bool ReadHead(PieceHead& head);
  // `target` has the head's piece_bytes. False also when something follows the piece.
  bool ReadPiece(std::span<std::byte> target);

 private:
  grpc::ProtoBufferReader reader_;
  google::protobuf::io::CodedInputStream input_;
  bool has_piece_ = false;
};

}  // namespace bascule
