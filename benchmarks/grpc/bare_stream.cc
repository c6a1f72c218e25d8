#include "benchmarks/grpc/bare_stream.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>

#include "bascule/v1/transfer.grpc.pb.h"
#include "base/grpc/grpc_channel.h"

namespace bascule {

class BareServer::Impl final : public v1::Transfer::Service {
 public:
  grpc::Status Route(grpc::ServerContext*, grpc::ServerReaderWriter<v1::Ack, v1::Frame>* stream) override {
    v1::Frame frame;
    while (stream->Read(&frame)) {
      if (frame.has_hello()) stream->Write(v1::Ack());  // the end of a round
    }
    return grpc::Status::OK;
  }
  std::unique_ptr<GrpcServer> server;
};

BareServer::BareServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BareServer::~BareServer() { impl_->server.reset(); }
const std::string& BareServer::address() const { return impl_->server->address(); }

Result<std::unique_ptr<BareServer>> BareServer::Start() {
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->server, GrpcServer::Start("127.0.0.1:0", {impl.get()}));
  return std::unique_ptr<BareServer>(new BareServer(std::move(impl)));
}

class BareStream::Impl {
 public:
  explicit Impl(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Transfer::NewStub(channel)) {}
  ~Impl() {
    stream_->WritesDone();
    stream_->Finish();
  }
  Status Send(std::span<const std::byte> source, std::size_t message_bytes) {
    for (std::size_t at = 0; at < source.size(); at += message_bytes) {
      const std::span<const std::byte> piece = source.subspan(at, std::min(message_bytes, source.size() - at));
      frame_.set_piece(piece.data(), piece.size());
      if (!stream_->Write(frame_)) return Lost();
    }
    v1::Frame end;
    end.mutable_hello();
    v1::Ack ack;
    return stream_->Write(end) && stream_->Read(&ack) ? OkStatus() : Lost();
  }

 private:
  static Status Lost() { return Status::Unavailable("peer_lost", "a bare stream ended early"); }

  const std::unique_ptr<v1::Transfer::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Ack>> stream_ = stub_->Route(&context_);
  v1::Frame frame_;
};

BareStream::BareStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BareStream::~BareStream() = default;

Result<std::unique_ptr<BareStream>> BareStream::Open(const std::string& address) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeGrpcChannel(address));
  return std::unique_ptr<BareStream>(new BareStream(std::make_unique<Impl>(channel)));
}

Status BareStream::Send(std::span<const std::byte> source, std::size_t message_bytes) {
  return impl_->Send(source, message_bytes);
}

}  // namespace bascule
