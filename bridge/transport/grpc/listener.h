// Takes routes as a service of the process's gRPC server:
//
//   GrpcListener listener;
//   auto server = GrpcServer::Start(address, {&listener.service(), ...});
//   listener.SetAddress(...);   // where senders reach that server
//
// Thread-safety: thread-safe. It outlives the server.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "bridge/transport/route_table.h"
#include "bridge/transport/transport.h"

namespace grpc {
class Service;
}

namespace bascule {

class GrpcListener final : public TransportListener {
 public:
  explicit GrpcListener(Clock& clock = Clock::Real());
  ~GrpcListener() override;

  // bascule.v1.Transfer; owned by the listener.
  grpc::Service& service();
  // What endpoint() says from now on; before, its address is empty.
  void SetAddress(std::string address) EXCLUDES(mu_);

  TransportEndpoint endpoint() const override EXCLUDES(mu_);
  void Expect(std::uint64_t connection) override { routes_->Expect(connection); }
  void Forget(std::uint64_t connection) override { routes_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    const std::shared_ptr<RouteTable> routes = routes_;  // A wait may outlive the listener.
    return routes->Accept(connection, route, deadline);
  }

 private:
  const std::shared_ptr<RouteTable> routes_;
  const std::unique_ptr<grpc::Service> service_;
  mutable Mutex mu_;
  std::string address_ GUARDED_BY(mu_);
};

}  // namespace bascule
