// Opens routes to engines on the same host, run by the same user.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "bridge/transport/transport.h"

namespace bascule {

class ShmDialer final : public TransportDialer {
 public:
  explicit ShmDialer(Clock& clock = Clock::Real()) : clock_(clock) {}

  TransportKind kind() const override { return TransportKind::kShm; }
  // The address is a socket file of this user.
  bool CanReach(const TransportEndpoint& endpoint) const override;
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;

 private:
  Clock& clock_;
};

}  // namespace bascule
