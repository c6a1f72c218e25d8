#include "bridge/transport/loopback/listener.h"

#include <utility>

namespace bascule {

Result<std::unique_ptr<LoopbackListener>> LoopbackListener::Create(LoopbackNetwork& network, std::string address,
                                                                   Clock& clock) {
  auto routes = std::make_shared<RouteTable>(clock);
  RETURN_IF_ERROR(network.Bind(address, routes));
  return std::unique_ptr<LoopbackListener>(new LoopbackListener(network, std::move(address), std::move(routes)));
}

LoopbackListener::LoopbackListener(LoopbackNetwork& network, std::string address, std::shared_ptr<RouteTable> routes)
    : network_(network), address_(std::move(address)), routes_(std::move(routes)) {}

LoopbackListener::~LoopbackListener() {
  network_.Unbind(address_);
  routes_->Close();
}

}  // namespace bascule
