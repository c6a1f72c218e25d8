// TLS and tokens as gRPC's credentials. gRPC takes tokens only over what it calls secure: TLS, or a connection that it
// sees not to leave the host; so tokens never travel in the clear from one host to another.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <memory>

#include "base/net_address.h"
#include "base/peer_security.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace bascule {

// InvalidArgument "token_in_the_clear"
Result<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const NetAddress& address,
                                                                        const ClientSecurity& security);

// InvalidArgument "token_in_the_clear"
Result<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const NetAddress& address,
                                                                      const ServerSecurity& security);

}  // namespace bascule
