// Opens routes to engines on any host. Each route has a connection of its own, so that routes share no flow control.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <utility>

#include "base/peer_security.h"
#include "bridge/transport/transport.h"

namespace bascule {

class GrpcDialer final : public TransportDialer {
 public:
  explicit GrpcDialer(ClientSecurity security = {}, Clock& clock = Clock::Real())
      : security_(std::move(security)), clock_(clock) {}

  TransportKind kind() const override { return TransportKind::kGrpc; }
  // The address can be dialled; whether anybody answers is not asked.
  bool CanReach(const TransportEndpoint& endpoint) const override;
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;

 private:
  const ClientSecurity security_;
  Clock& clock_;
};

}  // namespace bascule
