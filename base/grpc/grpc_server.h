// One gRPC server for everything a process offers: binds an address, hosts the services it is given, and answers health
// checks and reflection. Two servers never share a port.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace bascule {

// Thread-safety: thread-safe, but for Stop, which is its owner's.
class GrpcServer {
 public:
  // Port 0 binds a free one. `services` are borrowed: they outlive the server. Health says "not serving" at first. With
  // tokens in `security` every call of every service is checked, health and reflection included. A Unix socket is
  // its owner's alone: mode 0600, and no other user but root gets through. An address that other
  // hosts can reach is logged as a warning where neither TLS of both sides nor tokens keep them out.
  //
  // InvalidArgument "bad_address"; FailedPrecondition "address_in_use"; Unavailable "cannot_listen"
  // ResourceExhausted "descriptors" | "thread_limit"  for gRPC itself; a server that runs and has no descriptor left
  // for a caller lets it wait InvalidArgument "token_in_the_clear"  tokens, no TLS, and an address that other hosts can
  // reach
  static Result<std::unique_ptr<GrpcServer>> Start(const std::string& address,
                                                   const std::vector<grpc::Service*>& services,
                                                   const ServerSecurity& security = {});
  ~GrpcServer();  // Stop, without grace

  // The bound address, in the form of NetAddress.
  const std::string& address() const { return address_; }
  // What the health service answers, for the server as a whole.
  void SetServing(bool serving);
  // Takes no more calls; running ones may end within `grace`, then they are cancelled. Returns once every handler has.
  void Stop(Duration grace);

 private:
  struct Listener;
  GrpcServer(std::unique_ptr<grpc::Server> server, std::unique_ptr<Listener> listener, std::string address);

  const std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> listener_;  // until Stop
  const std::string address_;
};

}  // namespace bascule
