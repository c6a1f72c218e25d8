#include "bridge/transport/grpc/listener.h"

#include <utility>

#include "bascule/v1/transfer.grpc.pb.h"
#include "bridge/transport/grpc/receiving_call_internal.h"

namespace bascule {
namespace {

// Raw: frames are read as they lie in gRPC's buffers, not through a protobuf string.
class TransferService final : public v1::Transfer::WithRawCallbackMethod_Route<v1::Transfer::Service> {
 public:
  TransferService(std::shared_ptr<RouteTable> routes, Clock& clock) : routes_(std::move(routes)), clock_(clock) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Route(grpc::CallbackServerContext* context) override {
    return ServeGrpcRoute(routes_, *context, clock_);
  }

 private:
  const std::shared_ptr<RouteTable> routes_;
  Clock& clock_;
};

}  // namespace

GrpcListener::GrpcListener(Clock& clock)
    : routes_(std::make_shared<RouteTable>(clock)), service_(std::make_unique<TransferService>(routes_, clock)) {}

GrpcListener::~GrpcListener() { routes_->Close(); }

grpc::Service& GrpcListener::service() { return *service_; }

void GrpcListener::SetAddress(std::string address) {
  MutexLock lock(mu_);
  address_ = std::move(address);
}

TransportEndpoint GrpcListener::endpoint() const {
  MutexLock lock(mu_);
  return {TransportKind::kGrpc, address_};
}

}  // namespace bascule
