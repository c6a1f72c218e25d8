#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <string>

#include "bascule/v1/transfer.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/worker.h"
#include "benchmarks/measure.h"
#include "benchmarks/transport_benchmarks.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"

namespace bascule {
namespace {

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// The limit: a plain stream of protobuf messages with a bytes field, as anybody would write it, read and thrown away.
class BareService final : public v1::Transfer::Service {
 public:
  grpc::Status Route(grpc::ServerContext*, grpc::ServerReaderWriter<v1::Ack, v1::Frame>* stream) override {
    v1::Frame frame;
    while (stream->Read(&frame)) {
      if (!frame.has_hello()) continue;
      stream->Write(v1::Ack());  // the end of a round
    }
    return grpc::Status::OK;
  }
};

// Thread-safety: confined.
class BareStream {
 public:
  BareStream() : server_(GrpcServer::Start("127.0.0.1:0", {&service_}).value()) {
    piece_.mutable_piece()->assign(kFrameBytes, 'x');
  }
  ~BareStream() {
    stream_->WritesDone();
    stream_->Finish();
  }
  bool Send(std::size_t bytes) {
    for (std::size_t sent = 0; sent < bytes; sent += kFrameBytes) {
      if (!stream_->Write(piece_)) return false;
    }
    v1::Frame end;
    end.mutable_hello();
    v1::Ack ack;
    return stream_->Write(end) && stream_->Read(&ack);
  }

 private:
  BareService service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Transfer::Stub> stub_ = v1::Transfer::NewStub(MakeGrpcChannel(server_->address()).value());
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Ack>> stream_ = stub_->Route(&context_);
  v1::Frame piece_;
};

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
  BareStream bare;
  bool sent = true;
  const std::function<void()> contenders[] = {
      [&] { sent = sent && SendCopies(*sender, source->bytes()); },
      [&] { sent = sent && bare.Send(scale.bytes); },
  };

  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);

  sender.reset();  // ends the receiving thread
  if (!sent) return Status::Unavailable("peer_lost", "a stream ended early");
  return std::vector<BenchmarkRow>{{"grpc_transport", GigabytesPerSecond(scale.bytes, seconds[0]), "GB/s",
                                    GigabytesPerSecond(scale.bytes, seconds[1]),
                                    "bare gRPC stream of protobuf bytes, messages of the same size"}};
}

}  // namespace bascule
