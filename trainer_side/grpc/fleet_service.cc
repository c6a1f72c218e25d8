#include "trainer_side/grpc/fleet_service.h"

#include <grpcpp/grpcpp.h>

#include "bascule/v1/fleet.grpc.pb.h"
#include "base/grpc/grpc_status.h"
#include "base/net_address.h"
#include "bridge/session/grpc/fleet_codec_internal.h"

namespace bascule {
namespace {

Result<FleetWelcome> Welcome(WeightPublisher& publisher, const v1::JoinRequest& request) {
  ASSIGN_OR_RETURN(const FleetHeartbeat heartbeat, FromProto(request));
  RETURN_IF_ERROR(NetAddress::Parse(heartbeat.address).status());
  return publisher.Join(heartbeat);
}

}  // namespace

class FleetService::Service final : public v1::Fleet::Service {
 public:
  explicit Service(WeightPublisher& publisher) : publisher_(publisher) {}

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request, v1::JoinResponse* out) override {
    const Result<FleetWelcome> welcome = Welcome(publisher_, *request);
    if (!welcome.ok()) return ToGrpc(welcome.status());
    ToProto(*welcome, *out);
    return grpc::Status::OK;
  }

  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request, v1::LeaveResponse*) override {
    publisher_.Leave(request->address(), InstanceId{request->instance()});
    return grpc::Status::OK;
  }

 private:
  WeightPublisher& publisher_;
};

FleetService::FleetService(WeightPublisher& publisher) : service_(std::make_unique<Service>(publisher)) {}

FleetService::~FleetService() = default;

grpc::Service& FleetService::service() { return *service_; }

}  // namespace bascule
