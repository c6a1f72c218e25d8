#include "base/grpc/grpc_server.h"
#include "base/worker.h"
#include "benchmarks/grpc/bare_stream.h"
#include "benchmarks/measure.h"
#include "benchmarks/transport_benchmarks.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"

namespace bascule {
namespace {

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

}  // namespace

Result<std::vector<BenchmarkRow>> RunGrpcBenchmark(const BenchmarkScale& scale) {
  ASSIGN_OR_RETURN(const auto source, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto target, NoiseBuffer(scale.bytes));
  GrpcListener listener;
  ASSIGN_OR_RETURN(const auto server, GrpcServer::Start("127.0.0.1:0", {&listener.service()}));
  listener.SetAddress(server->address());
  listener.Expect(1);
  ASSIGN_OR_RETURN(auto sender, GrpcDialer().Dial(listener.endpoint(), BenchmarkHello(1), Soon()));
  ASSIGN_OR_RETURN(const auto receiver, listener.Accept(1, Route{}, Soon()));
  const Worker receiving("receive", [&](std::stop_token) { ReceiveCopies(*receiver, target->bytes()); });
  ASSIGN_OR_RETURN(const auto bare_server, BareServer::Start());
  ASSIGN_OR_RETURN(const auto bare, BareStream::Open(bare_server->address()));
  bool sent = true;
  const std::function<void()> contenders[] = {
      [&] { sent = sent && SendCopies(*sender, source->bytes()); },
      [&] { sent = sent && bare->Send(source->bytes(), kFrameBytes).ok(); },
  };

  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);

  sender.reset();  // ends the receiving thread
  if (!sent) return Status::Unavailable("peer_lost", "a stream ended early");
  return std::vector<BenchmarkRow>{{"grpc_transport", GigabytesPerSecond(scale.bytes, seconds[0]), "GB/s",
                                    GigabytesPerSecond(scale.bytes, seconds[1]),
                                    "bare gRPC stream of protobuf bytes, messages of the same size"}};
}

}  // namespace bascule
