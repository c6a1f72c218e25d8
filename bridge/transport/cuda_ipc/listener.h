// Takes routes from senders of the same host, user and device. A sender brings its frames: their first part in a sealed
// memfd, as in shm, and their second in device memory, which this side opens once for as long as the route lives.
//
// It sees devices only through device/device.h, so it is built everywhere, and works where a backend gives it a Device.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>

#include "bridge/transport/cuda_ipc/messages.h"
#include "bridge/transport/route_table.h"
#include "bridge/transport/shm/socket_listener.h"
#include "bridge/transport/transport.h"

namespace bascule {

class CudaIpcListener final : public TransportListener {
 public:
  // Listens at `path` for senders on `device`, which outlives this and its routes. See SocketListener for the errors.
  static Result<std::unique_ptr<CudaIpcListener>> Create(const std::string& path, Device& device,
                                                         Clock& clock = Clock::Real());
  ~CudaIpcListener() override;

  TransportEndpoint endpoint() const override {
    return {TransportKind::kCudaIpc, ToAddress({device_.description().uuid, door_->path()})};
  }
  void Expect(std::uint64_t connection) override { routes_->Expect(connection); }
  void Forget(std::uint64_t connection) override { routes_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    const std::shared_ptr<RouteTable> routes = routes_;  // A wait may outlive the listener.
    return routes->Accept(connection, route, deadline);
  }

 private:
  CudaIpcListener(std::shared_ptr<RouteTable> routes, std::unique_ptr<SocketListener> door, Device& device)
      : routes_(std::move(routes)), door_(std::move(door)), device_(device) {}

  const std::shared_ptr<RouteTable> routes_;
  std::unique_ptr<SocketListener> door_;
  Device& device_;
};

}  // namespace bascule
