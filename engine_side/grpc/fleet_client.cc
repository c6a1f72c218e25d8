#include "engine_side/grpc/fleet_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "bascule/v1/fleet.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_status.h"
#include "bridge/session/grpc/fleet_codec_internal.h"

namespace bascule {
namespace {

class GrpcFleetLink final : public FleetLink {
 public:
  GrpcFleetLink(std::string publisher, ClientSecurity security)
      : publisher_(std::move(publisher)), security_(std::move(security)) {}

  Result<FleetWelcome> Join(const FleetHeartbeat& heartbeat, Deadline deadline) override {
    ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(publisher_, deadline, Clock::Real(), security_));
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
    v1::JoinResponse answer;
    const grpc::Status status = v1::Fleet::NewStub(channel)->Join(&context, ToProto(heartbeat), &answer);
    if (!status.ok()) return FromGrpc(status);
    return FromProto(answer);
  }

  Status Leave(const std::string& address, InstanceId instance, Deadline deadline) override {
    ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(publisher_, deadline, Clock::Real(), security_));
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
    v1::LeaveRequest request;
    request.set_address(address);
    request.set_instance(instance.value);
    v1::LeaveResponse answer;
    return FromGrpc(v1::Fleet::NewStub(channel)->Leave(&context, request, &answer));
  }

 private:
  const std::string publisher_;
  const ClientSecurity security_;
};

}  // namespace

std::unique_ptr<FleetLink> MakeGrpcFleetLink(std::string publisher, ClientSecurity security) {
  return std::make_unique<GrpcFleetLink>(std::move(publisher), std::move(security));
}

Result<WeightVersion> FetchFromPeer(const std::string& peer, const PeerRequest& wanted, Deadline deadline,
                                    const std::stop_token& stop, const ClientSecurity& security) {
  ASSIGN_OR_RETURN(const auto channel, ConnectGrpcChannel(peer, deadline, Clock::Real(), security));
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline, Clock::Real()));
  const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  v1::SendLiveRequest request;
  request.set_to(wanted.to);
  request.set_first(wanted.first);
  if (wanted.version) ToProto(*wanted.version, *request.mutable_version());
  v1::SendLiveResponse answer;
  const grpc::Status status = v1::PeerSource::NewStub(channel)->SendLive(&context, request, &answer);
  if (stop.stop_requested()) return Status::Cancelled("cancelled", "stopped");
  if (!status.ok()) return FromGrpc(status).WithContext("peer " + peer);
  return FromProto(answer.version());
}

}  // namespace bascule
