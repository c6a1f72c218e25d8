#include "bridge/transport/transport.h"

namespace bascule {

std::string_view TransportName(TransportKind kind) {
  switch (kind) {
    case TransportKind::kLoopback:
      return "loopback";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kGrpc:
      return "grpc";
    case TransportKind::kCudaIpc:
      return "cuda_ipc";
    case TransportKind::kNccl:
      return "nccl";
  }
  return "unknown";
}

Result<TransportKind> ParseTransport(std::string_view name) {
  for (const TransportKind kind : {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kGrpc,
                                   TransportKind::kCudaIpc, TransportKind::kNccl}) {
    if (TransportName(kind) == name) return kind;
  }
  return Status::InvalidArgument("unknown_transport",
                                 fmt::format("'{}' is none of loopback, shm, grpc, cuda_ipc, nccl", name));
}

Status BucketSender::SendViews(std::size_t, std::vector<BoxView>) {
  CheckFailed(__FILE__, __LINE__, "a transport that takes views");
}

std::span<std::byte> BucketSender::AcquireDevicePayload() {
  CheckFailed(__FILE__, __LINE__, "a transport with frames on a device");
}

Status BucketSender::SendFilledOn(std::size_t, std::size_t, DeviceStream&) {
  CheckFailed(__FILE__, __LINE__, "a transport with frames on a device");
}

Result<std::uint32_t> BucketSender::PutBy(DeviceStream&) {
  CheckFailed(__FILE__, __LINE__, "a transport with frames on a device");
}

void BucketSender::TakeUp(std::uint32_t) { CheckFailed(__FILE__, __LINE__, "a transport with frames on a device"); }

Status BucketReceiver::AcknowledgeReadOn(const ReceivedFrame&, const BucketAck&, DeviceStream&) {
  CheckFailed(__FILE__, __LINE__, "a transport with frames on a device");
}

Result<std::unique_ptr<BucketCast>> TransportDialer::Cast(std::span<BucketSender* const>) {
  CheckFailed(__FILE__, __LINE__, "a transport that casts");
}

Status CheckRouteHello(const RouteHello& hello) {
  if (hello.route.sender_rank < 0 || hello.route.engine_rank < 0) {
    return Status::InvalidArgument(
        "bad_route", fmt::format("sender_rank={} engine_rank={}", hello.route.sender_rank, hello.route.engine_rank));
  }
  if (hello.frame_bytes < 1 || hello.frame_bytes > kMaxFrameBytes || hello.credits < 1 || hello.credits > kMaxCredits ||
      hello.frame_bytes * hello.credits > kMaxRouteBytes) {
    return Status::InvalidArgument("bad_route",
                                   fmt::format("frame_bytes={} (at most {}) credits={} (at most {})", hello.frame_bytes,
                                               kMaxFrameBytes, hello.credits, kMaxCredits));
  }
  return OkStatus();
}

}  // namespace bascule
