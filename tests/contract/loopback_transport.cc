#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "tests/contract/transport_contract.h"

namespace bascule {
namespace {

class LoopbackWorld final : public TransportWorld {
 public:
  LoopbackWorld() : listener_(LoopbackListener::Create(network_, "engine").value()), dialer_(network_) {}
  TransportListener& listener() override { return *listener_; }
  TransportDialer& dialer() override { return dialer_; }
  void CloseListener() override { listener_.reset(); }

 private:
  LoopbackNetwork network_;
  std::unique_ptr<LoopbackListener> listener_;
  LoopbackDialer dialer_;
};

INSTANTIATE_TEST_SUITE_P(Loopback, TransportContractTest,
                         testing::Values(TransportCase{"loopback", TransportKind::kLoopback, /*wants_checksum=*/false,
                                                       /*pool_threads=*/0,
                                                       [] { return std::make_unique<LoopbackWorld>(); }}));

}  // namespace
}  // namespace bascule
