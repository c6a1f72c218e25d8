#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "tests/contract/transport_contract.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

class ShmWorld final : public TransportWorld {
 public:
  ShmWorld() : listener_(ShmListener::Create(directory_.File("engine.sock")).value()) {}
  TransportListener& listener() override { return *listener_; }
  TransportDialer& dialer() override { return dialer_; }
  void CloseListener() override { listener_.reset(); }

 private:
  TempDirectory directory_;
  std::unique_ptr<ShmListener> listener_;
  ShmDialer dialer_;
};

INSTANTIATE_TEST_SUITE_P(Shm, TransportContractTest,
                         testing::Values(TransportCase{"shm", TransportKind::kShm, /*wants_checksum=*/false,
                                                       /*pool_threads=*/0,
                                                       [] { return std::make_unique<ShmWorld>(); }}));

}  // namespace
}  // namespace bascule
