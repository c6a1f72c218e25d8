#include "base/grpc/grpc_server.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"
#include "tests/contract/transport_contract.h"

namespace bascule {
namespace {

class GrpcWorld final : public TransportWorld {
 public:
  GrpcWorld() : server_(GrpcServer::Start("127.0.0.1:0", {&listener_->service()}).value()) {
    listener_->SetAddress(server_->address());
  }
  TransportListener& listener() override { return *listener_; }
  TransportDialer& dialer() override { return dialer_; }
  void CloseListener() override {
    server_.reset();
    listener_.reset();
  }

 private:
  std::unique_ptr<GrpcListener> listener_ = std::make_unique<GrpcListener>();
  std::unique_ptr<GrpcServer> server_;
  GrpcDialer dialer_;
};

INSTANTIATE_TEST_SUITE_P(Grpc, TransportContractTest,
                         testing::Values(TransportCase{"grpc", TransportKind::kGrpc, /*wants_checksum=*/true,
                                                       /*pool_threads=*/8,
                                                       [] { return std::make_unique<GrpcWorld>(); }}));

}  // namespace
}  // namespace bascule
