// Takes routes inside one process: for tests, simulation, and a trainer and engine that share a process.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>

#include "bridge/transport/loopback/network.h"
#include "bridge/transport/transport.h"

namespace bascule {

class LoopbackListener final : public TransportListener {
 public:
  // FailedPrecondition "address_in_use"
  static Result<std::unique_ptr<LoopbackListener>> Create(LoopbackNetwork& network, std::string address,
                                                          Clock& clock = Clock::Real());
  ~LoopbackListener() override;

  TransportEndpoint endpoint() const override { return {TransportKind::kLoopback, address_}; }
  void Expect(std::uint64_t connection) override { routes_->Expect(connection); }
  void Forget(std::uint64_t connection) override { routes_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    const std::shared_ptr<RouteTable> routes = routes_;  // A wait may outlive the listener.
    return routes->Accept(connection, route, deadline);
  }

 private:
  LoopbackListener(LoopbackNetwork& network, std::string address, std::shared_ptr<RouteTable> routes);

  LoopbackNetwork& network_;
  const std::string address_;
  const std::shared_ptr<RouteTable> routes_;  // shared with dials at work
};

}  // namespace bascule
