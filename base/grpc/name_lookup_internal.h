// The addresses behind a host's name, in bounded time: a resolver may ask the network for as long as it likes, and
// cannot be interrupted.
//
// Thread-safety: thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace bascule {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

// Appends what `host` stands for; 0, or an error of getaddrinfo.
using Resolver = std::function<int(const std::string& host, std::vector<SocketAddress>& found)>;
int ResolveBySystem(const std::string& host, std::vector<SocketAddress>& found);

// All of them, with `port`; at least one. An address in digits asks nobody. A lookup that is late goes on by itself,
// and what it finds is dropped.
//
// Unavailable "name_unknown"  with the resolver's words, or that it has not answered; ResourceExhausted "thread_limit"
Result<std::vector<SocketAddress>> LookUp(const std::string& host, std::uint16_t port, Deadline deadline, Clock& clock,
                                          Resolver resolver = &ResolveBySystem);

}  // namespace bascule
