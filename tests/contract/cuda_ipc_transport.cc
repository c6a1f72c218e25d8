// Over the fake CUDA runtime: both ends in one process.
#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "tests/contract/transport_contract.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

class CudaIpcWorld final : public TransportWorld {
 public:
  TransportListener& listener() override { return *listener_; }
  TransportDialer& dialer() override { return dialer_; }
  void CloseListener() override { listener_.reset(); }

 private:
  TempDirectory directory_;
  std::unique_ptr<CudaIpcListener> listener_ =
      CudaIpcListener::Create(directory_.File("engine.sock"), FakeDevice()).value();
  CudaIpcDialer dialer_{FakeDevice()};
};

INSTANTIATE_TEST_SUITE_P(CudaIpc, TransportContractTest,
                         testing::Values(TransportCase{"cuda_ipc", TransportKind::kCudaIpc, /*wants_checksum=*/false,
                                                       /*pool_threads=*/0,
                                                       [] { return std::make_unique<CudaIpcWorld>(); }}));

}  // namespace
}  // namespace bascule
