#include "base/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_credentials_internal.h"
#include "base/grpc/grpc_log_internal.h"
#include "base/grpc/unix_listener_internal.h"
#include "base/log.h"
#include "base/net_address.h"

namespace bascule {
namespace {

void EnablePluginsOnce() {
  RouteGrpcLog();
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

// gRPC says only that binding failed: binding once more by hand tells why.
int ErrorOfBind(const NetAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) != 0) {
    return EADDRNOTAVAIL;
  }
  const int probe = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(probe, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  close(probe);
  freeaddrinfo(found);
  return error;
}

Status WhyNotBound(const NetAddress& address) {
  const int error = address.is_unix() ? EIO : ErrorOfBind(address);
  if (error == EADDRINUSE) {
    return Status::FailedPrecondition("address_in_use",
                                      fmt::format("another server listens on {}", address.ToString()));
  }
  return Status::Unavailable("cannot_listen", fmt::format("{}: {}", address.ToString(), std::strerror(error)));
}

void WarnIfOpen(const NetAddress& address, const ServerSecurity& security) {
  if (address.is_unix() || address.is_loopback()) return;
  if (security.tokens != nullptr || !security.client_ca_pem.empty()) return;
  LogWarn("open_to_the_network",
          "address={} tls={} tokens=no: whoever reaches it may call everything, also replace weights",
          address.ToString(), security.identity.empty() ? "no" : "server");
}

// gRPC's own sockets know nothing of modes and users: a Unix socket is ours, and hands its callers over.
void ServeCallers(UnixListener& listener, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  listener.Serve([shared = std::shared_ptr(std::move(acceptor))](int listening_fd, int caller_fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters caller;
    caller.listener_fd = listening_fd;
    caller.fd = caller_fd;
    shared->HandleNewConnection(&caller);
  });
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kGrpcKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kGrpcKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Half the time between our clients' questions: they are no flood.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kGrpcKeepaliveMs / 2);
  builder.SetMaxReceiveMessageSize(kGrpcMessageBytes);
  builder.SetMaxSendMessageSize(kGrpcMessageBytes);
}

}  // namespace

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, std::unique_ptr<UnixListener> listener,
                       std::string address)
    : server_(std::move(server)), listener_(std::move(listener)), address_(std::move(address)) {}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& address,
                                                      const std::vector<grpc::Service*>& services,
                                                      const ServerSecurity& security) {
  ASSIGN_OR_RETURN(NetAddress parsed, NetAddress::Parse(address));
  ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsFor(parsed, security));
  EnablePluginsOnce();
  grpc::ServerBuilder builder;
  SetLimits(builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<UnixListener> listener;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  int bound_port = 0;
  if (parsed.is_unix()) {
    ASSIGN_OR_RETURN(listener, UnixListener::Open(parsed));
    using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor = builder.experimental().AddExternalConnectionAcceptor(From::FROM_FD, credentials);
  } else {
    builder.AddListeningPort(parsed.ToString(), credentials, &bound_port);
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || (bound_port == 0 && !parsed.is_unix())) return WhyNotBound(parsed);
  if (acceptor != nullptr) ServeCallers(*listener, std::move(acceptor));
  if (!parsed.is_unix()) parsed.port = static_cast<std::uint16_t>(bound_port);
  auto result = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(server), std::move(listener), parsed.ToString()));
  result->SetServing(false);
  WarnIfOpen(parsed, security);
  return result;
}

GrpcServer::~GrpcServer() { Stop(Duration::zero()); }

void GrpcServer::SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

void GrpcServer::Stop(Duration grace) {
  const auto until =
      std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(grace);
  listener_.reset();
  server_->Shutdown(until);
  server_->Wait();
}

}  // namespace bascule
