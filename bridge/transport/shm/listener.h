// Takes routes from senders on the same host, run by the same user, at a Unix socket in a private directory. A sender
// brings its arena; this side maps it read-only once, for as long as the route lives.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>

#include "bridge/transport/route_table.h"
#include "bridge/transport/shm/socket_listener.h"
#include "bridge/transport/transport.h"

namespace bascule {

class ShmListener final : public TransportListener {
 public:
  // Listens at `path`; see SocketListener for the errors and runtime_directory.h for the usual path.
  static Result<std::unique_ptr<ShmListener>> Create(const std::string& path, Clock& clock = Clock::Real());
  ~ShmListener() override;

  TransportEndpoint endpoint() const override { return {TransportKind::kShm, door_->path()}; }
  void Expect(std::uint64_t connection) override { routes_->Expect(connection); }
  void Forget(std::uint64_t connection) override { routes_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    const std::shared_ptr<RouteTable> routes = routes_;  // A wait may outlive the listener.
    return routes->Accept(connection, route, deadline);
  }

 private:
  ShmListener(std::shared_ptr<RouteTable> routes, std::unique_ptr<SocketListener> door)
      : routes_(std::move(routes)), door_(std::move(door)) {}

  const std::shared_ptr<RouteTable> routes_;
  std::unique_ptr<SocketListener> door_;
};

}  // namespace bascule
