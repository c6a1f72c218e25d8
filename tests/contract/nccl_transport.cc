// Over the fake CUDA runtime and the fake NCCL: both ends in one process, on two devices; loopback carries.
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/nccl/dialer.h"
#include "bridge/transport/nccl/listener.h"
#include "tests/contract/transport_contract.h"
#include "tests/support/fake_cuda/fake_device.h"

namespace bascule {
namespace {

class NcclWorld final : public TransportWorld {
 public:
  TransportListener& listener() override { return *listener_; }
  TransportDialer& dialer() override { return dialer_; }
  void CloseListener() override {
    listener_.reset();
    carrier_.reset();
  }

 private:
  LoopbackNetwork network_;
  Device& trainer_ = FakeDevice(0);
  Device& engine_ = FakeDevice(1);
  Communicators& communicators_ = **LoadCommunicators();
  std::unique_ptr<LoopbackListener> carrier_ = LoopbackListener::Create(network_, "engine").value();
  LoopbackDialer carrying_{network_};
  std::unique_ptr<NcclListener> listener_ =
      std::make_unique<NcclListener>(std::vector(3, &engine_), communicators_, *carrier_);
  NcclDialer dialer_{trainer_, communicators_, carrying_};
};

INSTANTIATE_TEST_SUITE_P(Nccl, TransportContractTest,
                         testing::Values(TransportCase{"nccl", TransportKind::kNccl, /*wants_checksum=*/false,
                                                       /*pool_threads=*/0,
                                                       [] { return std::make_unique<NcclWorld>(); }}));

}  // namespace
}  // namespace bascule
