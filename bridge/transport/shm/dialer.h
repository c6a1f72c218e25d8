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
  // The address is a socket file of this user, and both memory and socket can be had: tried out, and a warning in the
  // log says why where not.
  bool CanReach(const TransportEndpoint& endpoint) const override;
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;

 private:
  Clock& clock_;
};

}  // namespace bascule
