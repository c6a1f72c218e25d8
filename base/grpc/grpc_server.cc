#include "base/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_credentials_internal.h"
#include "base/grpc/grpc_log_internal.h"
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

// gRPC replaces a socket file that is in its way, also one that another server uses: only a dead socket may go.
Status CheckUnixPathIsFree(const NetAddress& address) {
  struct stat found {};
  if (lstat(address.unix_path.c_str(), &found) != 0) return OkStatus();
  if (!S_ISSOCK(found.st_mode)) {
    return Status::FailedPrecondition("address_in_use", fmt::format("{} is a file", address.ToString()));
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return OkStatus();
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.unix_path.c_str(), address.unix_path.size());
  const bool answered = connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  close(probe);
  if (!answered) return OkStatus();
  return Status::FailedPrecondition("address_in_use", fmt::format("another server listens on {}", address.ToString()));
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
  const int error = address.is_unix() ? EACCES : ErrorOfBind(address);
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

}  // namespace

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, std::string address)
    : server_(std::move(server)), address_(std::move(address)) {}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& address,
                                                      const std::vector<grpc::Service*>& services,
                                                      const ServerSecurity& security) {
  ASSIGN_OR_RETURN(NetAddress parsed, NetAddress::Parse(address));
  ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsFor(parsed, security));
  if (parsed.is_unix()) RETURN_IF_ERROR(CheckUnixPathIsFree(parsed));
  EnablePluginsOnce();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kGrpcKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kGrpcKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Half the time between our clients' questions: they are no flood.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kGrpcKeepaliveMs / 2);
  builder.SetMaxReceiveMessageSize(kGrpcMessageBytes);
  builder.SetMaxSendMessageSize(kGrpcMessageBytes);
  int bound_port = 0;
  builder.AddListeningPort(parsed.ToString(), credentials, &bound_port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound_port == 0) return WhyNotBound(parsed);
  if (!parsed.is_unix()) parsed.port = static_cast<std::uint16_t>(bound_port);
  auto result = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(server), parsed.ToString()));
  result->SetServing(false);
  WarnIfOpen(parsed, security);
  return result;
}

GrpcServer::~GrpcServer() { Stop(Duration::zero()); }

void GrpcServer::SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

void GrpcServer::Stop(Duration grace) {
  const auto until =
      std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(grace);
  server_->Shutdown(until);
  server_->Wait();
}

}  // namespace bascule
