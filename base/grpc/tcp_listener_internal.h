// The TCP sockets of a gRPC server.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>

#include "base/grpc/caller_intake_internal.h"
#include "base/net_address.h"
#include "base/status.h"

namespace bascule {

struct TcpListener {
  std::unique_ptr<CallerIntake> intake;
  std::uint16_t port = 0;  // that was bound

  // Listens on every address of the host, all on one port; "::" also takes IPv4.
  //
  // FailedPrecondition "address_in_use"
  // Unavailable "cannot_listen"  none of its addresses is this machine's
  // ResourceExhausted "descriptors"
  static Result<TcpListener> Open(const NetAddress& address);
};

}  // namespace bascule
