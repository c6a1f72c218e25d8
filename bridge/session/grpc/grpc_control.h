// Control between hosts: the WeightSync service and its client. gRPC stays out of this header.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "bridge/session/control.h"

namespace grpc {
class Service;
}

namespace bascule {

// Hosted by a GrpcServer, which it outlives; each connection runs `handler` on a thread of the server.
class GrpcControlService {
 public:
  explicit GrpcControlService(ControlHandler handler, Clock& clock = Clock::Real());
  ~GrpcControlService();
  grpc::Service* service();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// Addresses are NetAddress's forms. A peer that offers no WeightSync fails the first Receive with "wrong_service", one
// that refuses the caller with "unauthenticated" or "permission_denied"; so do Sends that come later.
class GrpcControlDialer final : public ControlDialer {
 public:
  explicit GrpcControlDialer(ClientSecurity security = {}, Clock& clock = Clock::Real())
      : security_(std::move(security)), clock_(clock) {}
  Result<std::unique_ptr<ControlChannel>> Dial(const std::string& address, Deadline deadline) override;

 private:
  const ClientSecurity security_;
  Clock& clock_;
};

// Each listener is a server of its own. Addresses are NetAddress's forms; port 0 binds a free one.
class GrpcControlHost final : public ControlHost {
 public:
  explicit GrpcControlHost(ServerSecurity security = {}, Clock& clock = Clock::Real())
      : security_(std::move(security)), clock_(clock) {}
  Result<std::unique_ptr<Listener>> Listen(const std::string& address, ControlHandler handler) override;

 private:
  const ServerSecurity security_;
  Clock& clock_;
};

}  // namespace bascule
