// Opens routes to listeners of the same LoopbackNetwork.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "bridge/transport/loopback/network.h"
#include "bridge/transport/transport.h"

namespace bascule {

class LoopbackDialer final : public TransportDialer {
 public:
  explicit LoopbackDialer(LoopbackNetwork& network, Clock& clock = Clock::Real()) : network_(network), clock_(clock) {}

  TransportKind kind() const override { return TransportKind::kLoopback; }
  bool CanReach(const TransportEndpoint& endpoint) const override;
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;

 private:
  LoopbackNetwork& network_;
  Clock& clock_;
};

}  // namespace bascule
