#include "base/grpc/grpc_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "base/grpc/connect_diagnosis_internal.h"
#include "base/grpc/grpc_credentials_internal.h"
#include "base/grpc/grpc_log_internal.h"
#include "base/grpc/grpc_needs_internal.h"
#include "base/net_address.h"

namespace bascule {

std::chrono::system_clock::time_point GrpcDeadline(Deadline deadline, Clock& clock) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline.Left(clock));
}

Result<std::shared_ptr<grpc::Channel>> MakeGrpcChannel(const std::string& address, const ClientSecurity& security) {
  ASSIGN_OR_RETURN(const NetAddress parsed, NetAddress::Parse(address));
  RETURN_IF_ERROR(CheckGrpcNeeds());  // before credentials: those already start gRPC
  ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFor(parsed, security));
  RouteGrpcLog();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kGrpcKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kGrpcKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(kGrpcMessageBytes);
  arguments.SetMaxSendMessageSize(kGrpcMessageBytes);
  if (!security.server_name.empty()) arguments.SetSslTargetNameOverride(security.server_name);
  return grpc::CreateCustomChannel(parsed.ToString(), credentials, arguments);
}

Result<std::shared_ptr<grpc::Channel>> ConnectGrpcChannel(const std::string& address, Deadline deadline, Clock& clock,
                                                          const ClientSecurity& security) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeGrpcChannel(address, security));
  const auto until = GrpcDeadline(deadline, clock);
  while (true) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return channel;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      ASSIGN_OR_RETURN(const NetAddress parsed, NetAddress::Parse(address));
      return WhyNotConnected(parsed, security, deadline, clock);
    }
    if (!channel->WaitForStateChange(state, until)) {
      return Status::DeadlineExceeded("deadline", fmt::format("no connection to {} in time", address));
    }
  }
}

}  // namespace bascule
