#include "base/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <mutex>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_credentials_internal.h"
#include "base/grpc/grpc_log_internal.h"
#include "base/grpc/grpc_needs_internal.h"
#include "base/grpc/tcp_listener_internal.h"
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

void WarnIfOpen(const NetAddress& address, const ServerSecurity& security) {
  if (address.is_unix() || address.is_loopback()) return;
  if (security.tokens != nullptr || !security.client_ca_pem.empty()) return;
  LogWarn("open_to_the_network",
          "address={} tls={} tokens=no: whoever reaches it may call everything, also replace weights",
          address.ToString(), security.identity.empty() ? "no" : "server");
}

CallerIntake::OnCaller HandOver(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  return [shared = std::shared_ptr(std::move(acceptor))](int listening_fd, int caller_fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters caller;
    caller.listener_fd = listening_fd;
    caller.fd = caller_fd;
    shared->HandleNewConnection(&caller);
  };
}

bool AnyoneMayCall(int) { return true; }

void SetLimits(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kGrpcKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kGrpcKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Half the time between our clients' questions: they are no flood.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kGrpcKeepaliveMs / 2);
  builder.SetMaxReceiveMessageSize(kGrpcMessageBytes);
  builder.SetMaxSendMessageSize(kGrpcMessageBytes);
}

}  // namespace

// Where its callers come from; gRPC's own sockets know nothing of modes and users either.
struct GrpcServer::Listener {
  std::unique_ptr<UnixListener> unix_socket;
  TcpListener tcp;

  static Result<std::unique_ptr<Listener>> Open(const NetAddress& address) {
    auto listener = std::make_unique<Listener>();
    if (address.is_unix()) {
      ASSIGN_OR_RETURN(listener->unix_socket, UnixListener::Open(address));
    } else {
      ASSIGN_OR_RETURN(listener->tcp, TcpListener::Open(address));
    }
    return listener;
  }
  Status Serve(CallerIntake::OnCaller on_caller) const {
    return unix_socket != nullptr ? unix_socket->Serve(std::move(on_caller))
                                  : tcp.intake->Serve(&AnyoneMayCall, std::move(on_caller));
  }
};

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, std::unique_ptr<Listener> listener, std::string address)
    : server_(std::move(server)), listener_(std::move(listener)), address_(std::move(address)) {}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& address,
                                                      const std::vector<grpc::Service*>& services,
                                                      const ServerSecurity& security) {
  ASSIGN_OR_RETURN(NetAddress parsed, NetAddress::Parse(address));
  RETURN_IF_ERROR(CheckGrpcNeeds());  // before credentials: those already start gRPC
  ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsFor(parsed, security));
  EnablePluginsOnce();
  grpc::ServerBuilder builder;
  SetLimits(builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::Open(parsed));
  if (!parsed.is_unix()) parsed.port = listener->tcp.port;
  using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(From::FROM_FD, credentials);
  RETURN_IF_ERROR(CheckGrpcServerNeeds());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Status::Unavailable("cannot_listen", parsed.ToString());
  RETURN_IF_ERROR(listener->Serve(HandOver(std::move(acceptor))));
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
