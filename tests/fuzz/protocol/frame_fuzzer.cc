// Frames of buckets from anywhere: the piece decoder accepts nothing that protobuf's own code reads otherwise, and a
// bucket's header promises no byte that the frame does not have.
#include <cstdint>
#include <string>
#include <vector>

#include "bascule/v1/transfer.pb.h"
#include "base/grpc/grpc_log_internal.h"
#include "base/log.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/transport/grpc/frame_codec_internal.h"

namespace bascule {
namespace {

grpc::ByteBuffer BufferOf(std::string_view bytes, std::size_t cut) {
  const grpc::Slice slices[] = {grpc::Slice(std::string(bytes.substr(0, cut))),
                                grpc::Slice(std::string(bytes.substr(cut)))};
  return grpc::ByteBuffer(slices, 2);
}

void DecodePiece(std::string_view bytes, std::size_t cut) {
  grpc::ByteBuffer buffer = BufferOf(bytes, cut);
  PieceDecoder decoder(buffer);
  PieceHead head;
  if (!decoder.ReadHead(head) || head.piece_bytes > bytes.size()) return;
  std::vector<std::byte> piece(head.piece_bytes);
  if (!decoder.ReadPiece(piece)) return;
  v1::Frame frame;
  CHECK(frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  CHECK(frame.index() == head.index && frame.frame_bytes() == head.frame_bytes);
  CHECK(frame.piece() == std::string(reinterpret_cast<const char*>(piece.data()), piece.size()));
}

void ParseBucket(std::span<const std::byte> frame) {
  const Result<BucketHeader> header = ParseBucketHeader(frame);
  if (!header.ok()) return;
  CHECK(FrameBytes(header->slice_count, header->payload_bytes) == static_cast<std::int64_t>(frame.size()));
  (void)CheckPayload(*header, frame);
  for (std::uint32_t slice = 0; slice < header->slice_count; ++slice) (void)ReadSliceDigest(frame, slice);
}

}  // namespace
}  // namespace bascule

// What protobuf has to say of each bad message would be most of the time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  bascule::RouteGrpcLog();
  bascule::SetLogLevel(bascule::LogLevel::kOff);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t cut = bytes.empty() ? 0 : data[0] % (bytes.size() + 1);
  grpc::ByteBuffer hello = bascule::BufferOf(bytes, cut);
  (void)bascule::DecodeHello(hello);
  bascule::DecodePiece(bytes, cut);
  bascule::ParseBucket(std::as_bytes(std::span(bytes)));
  return 0;
}
