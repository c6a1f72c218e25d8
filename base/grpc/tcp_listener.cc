#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/tcp_listener_internal.h"

namespace bascule {
namespace {

// Callers inherit what is set here. What is on the wire and not acknowledged for so long belongs to a peer that is
// gone.
void SetOptions(int fd, int family) {
  const int on = 1;
  const int off = 0;
  const int timeout_ms = kGrpcKeepaliveTimeoutMs;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
}

void SetPort(sockaddr* name, std::uint16_t port) {
  if (name->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(name)->sin_port = htons(port);
  if (name->sa_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(name)->sin6_port = htons(port);
}

std::uint16_t PortOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

// A listening socket, or minus an errno.
int ListenOn(const addrinfo& one) {
  const int fd = socket(one.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  SetOptions(fd, one.ai_family);
  if (bind(fd, one.ai_addr, one.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  return -error;
}

Status WhyNot(const NetAddress& address, int error) {
  if (error == EADDRINUSE) {
    return Status::FailedPrecondition("address_in_use",
                                      fmt::format("another server listens on {}", address.ToString()));
  }
  return Status::Unavailable("cannot_listen", fmt::format("{}: {}", address.ToString(), std::strerror(error)));
}

}  // namespace

Result<TcpListener> TcpListener::Open(const NetAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), nullptr, &hints, &found) != 0) return WhyNot(address, EADDRNOTAVAIL);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);

  TcpListener listener{.intake = nullptr, .port = address.port};
  std::vector<int> listening;
  int error = EADDRNOTAVAIL;
  for (addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SetPort(one->ai_addr, listener.port);
    const int fd = ListenOn(*one);
    if (fd >= 0) listening.push_back(fd);
    if (fd >= 0) listener.port = PortOf(fd);
    if (fd < 0) error = -fd;
    if (error == EADDRINUSE) break;
  }
  if (error == EADDRINUSE || listening.empty()) {
    for (const int fd : listening) close(fd);
    return WhyNot(address, error);
  }
  ASSIGN_OR_RETURN(listener.intake, CallerIntake::Create(std::move(listening)));
  return listener;
}

}  // namespace bascule
