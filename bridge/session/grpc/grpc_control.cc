#include "bridge/session/grpc/grpc_control.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include "bascule/v1/weight_sync.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/grpc/grpc_status.h"
#include "bridge/session/grpc/stream_channel_internal.h"

namespace bascule {
namespace {

class ServerFrameStream final : public FrameStream {
 public:
  using Stream = grpc::ServerReaderWriter<v1::SessionFrame, v1::SessionFrame>;
  ServerFrameStream(grpc::ServerContext& context, Stream& stream) : context_(context), stream_(stream) {}

  bool Read(v1::SessionFrame* frame) override { return stream_.Read(frame); }
  bool Write(const v1::SessionFrame& frame) override { return stream_.Write(frame); }
  void WritesDone() override {}  // the handler's return says so
  Status Finish() override { return OkStatus(); }
  void Cancel() override { context_.TryCancel(); }
  std::string peer() const override { return context_.peer(); }

 private:
  grpc::ServerContext& context_;
  Stream& stream_;
};

class ClientFrameStream final : public FrameStream {
 public:
  ClientFrameStream(std::shared_ptr<grpc::Channel> channel, std::string address)
      : address_(std::move(address)), stub_(v1::WeightSync::NewStub(channel)), stream_(stub_->Connect(&context_)) {}

  ~ClientFrameStream() override {
    if (finished_) return;
    context_.TryCancel();
    static_cast<void>(stream_->Finish());
  }

  bool Read(v1::SessionFrame* frame) override { return stream_->Read(frame); }
  bool Write(const v1::SessionFrame& frame) override { return stream_->Write(frame); }
  void WritesDone() override { stream_->WritesDone(); }
  // After bytes that are no frame this waits until Cancel: no later than the destruction of the channel.
  Status Finish() override {
    finished_ = true;
    return FromGrpc(stream_->Finish());
  }
  void Cancel() override { context_.TryCancel(); }
  std::string peer() const override { return address_; }

 private:
  const std::string address_;
  grpc::ClientContext context_;
  const std::unique_ptr<v1::WeightSync::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::SessionFrame, v1::SessionFrame>> stream_;
  bool finished_ = false;  // of the reading thread
};

}  // namespace

class GrpcControlService::Impl final : public v1::WeightSync::Service {
 public:
  Impl(ControlHandler handler, Clock& clock) : handler_(std::move(handler)), clock_(clock) {}

  grpc::Status Connect(grpc::ServerContext* context, ServerFrameStream::Stream* stream) override {
    const auto channel = StreamChannel::Open(std::make_unique<ServerFrameStream>(*context, *stream), clock_);
    if (!channel.ok()) return ToGrpc(channel.status());
    handler_(**channel);
    return grpc::Status::OK;
  }

 private:
  const ControlHandler handler_;
  Clock& clock_;
};

GrpcControlService::GrpcControlService(ControlHandler handler, Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(handler), clock)) {}

GrpcControlService::~GrpcControlService() = default;

grpc::Service* GrpcControlService::service() { return impl_.get(); }

Result<std::unique_ptr<ControlChannel>> GrpcControlDialer::Dial(const std::string& address, Deadline deadline) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, ConnectGrpcChannel(address, deadline, clock_, security_));
  ASSIGN_OR_RETURN(auto opened,
                   StreamChannel::Open(std::make_unique<ClientFrameStream>(std::move(channel), address), clock_));
  return std::unique_ptr<ControlChannel>(std::move(opened));
}

namespace {

constexpr Duration kFarewell = std::chrono::seconds(1);

class ServerOfOne final : public ControlHost::Listener {
 public:
  ServerOfOne(std::unique_ptr<GrpcControlService> service, std::unique_ptr<GrpcServer> server)
      : service_(std::move(service)), server_(std::move(server)) {}
  // Handlers that are about to return get to say their last.
  ~ServerOfOne() override { server_->Stop(kFarewell); }
  std::string address() const override { return server_->address(); }

 private:
  const std::unique_ptr<GrpcControlService> service_;
  const std::unique_ptr<GrpcServer> server_;  // goes first, with its calls
};

}  // namespace

Result<std::unique_ptr<ControlHost::Listener>> GrpcControlHost::Listen(const std::string& address,
                                                                       ControlHandler handler) {
  auto service = std::make_unique<GrpcControlService>(std::move(handler), clock_);
  ASSIGN_OR_RETURN(auto server, GrpcServer::Start(address, {service->service()}, security_));
  server->SetServing(true);
  return std::unique_ptr<Listener>(std::make_unique<ServerOfOne>(std::move(service), std::move(server)));
}

}  // namespace bascule
