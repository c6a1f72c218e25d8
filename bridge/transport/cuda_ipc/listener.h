// Takes routes from senders of the same host and user that are on a device of this engine's. A sender brings its
// frames: their first part in a sealed memfd, as in shm, and their second in device memory, which this side opens for
// the device of the route's engine rank, once for as long as the route lives. Where that is another device it reads as
// a peer.
//
// It sees devices only through device/device.h, so it is built everywhere, and works where a backend gives it a Device.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/transport/cuda_ipc/messages.h"
#include "bridge/transport/route_table.h"
#include "bridge/transport/shm/socket_listener.h"
#include "bridge/transport/transport.h"

namespace bascule {

class CudaIpcListener final : public TransportListener {
 public:
  // Listens at `path`. Engine rank r reads on devices[r], which outlive this and its routes. See SocketListener for the
  // errors.
  static Result<std::unique_ptr<CudaIpcListener>> Create(const std::string& path, std::vector<Device*> devices,
                                                         Clock& clock = Clock::Real());
  // All engine ranks read on one device.
  static Result<std::unique_ptr<CudaIpcListener>> Create(const std::string& path, Device& device,
                                                         Clock& clock = Clock::Real());
  ~CudaIpcListener() override;

  TransportEndpoint endpoint() const override;
  void Expect(std::uint64_t connection) override { routes_->Expect(connection); }
  void Forget(std::uint64_t connection) override { routes_->Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override {
    const std::shared_ptr<RouteTable> routes = routes_;  // A wait may outlive the listener.
    return routes->Accept(connection, route, deadline);
  }

 private:
  CudaIpcListener(std::shared_ptr<RouteTable> routes, std::unique_ptr<SocketListener> door,
                  std::vector<Device*> devices)
      : routes_(std::move(routes)), door_(std::move(door)), devices_(std::move(devices)) {}

  const std::shared_ptr<RouteTable> routes_;
  std::unique_ptr<SocketListener> door_;
  const std::vector<Device*> devices_;  // of one engine rank after the other, or one for all
};

}  // namespace bascule
