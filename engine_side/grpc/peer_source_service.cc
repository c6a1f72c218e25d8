#include "engine_side/grpc/peer_source_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "bascule/v1/fleet.grpc.pb.h"
#include "base/grpc/call_limit.h"
#include "base/grpc/grpc_status.h"
#include "base/net_address.h"
#include "bridge/session/grpc/fleet_codec_internal.h"
#include "engine_side/grpc/caller_watch_internal.h"

namespace bascule {

class PeerSourceService::Service final : public v1::PeerSource::Service {
 public:
  explicit Service(PeerSourceOptions options) : options_(std::move(options)), sending_(options_.at_once) {}

  void Stop() { stopping_.request_stop(); }

  grpc::Status SendLive(grpc::ServerContext* context, const v1::SendLiveRequest* request,
                        v1::SendLiveResponse* out) override {
    if (const auto address = NetAddress::Parse(request->to()); !address.ok()) return ToGrpc(address.status());
    PeerRequest wanted{.to = request->to(), .first = request->first(), .version = std::nullopt};
    if (request->has_version()) {
      Result<WeightVersion> version = FromProto(request->version());
      if (!version.ok()) return ToGrpc(version.status());
      wanted.version = *std::move(version);
    }
    const CallLimit::Place place(sending_);
    if (const Status taken = place.Taken("peer_busy"); !taken.ok()) return ToGrpc(taken);
    const auto left = std::chrono::duration_cast<Duration>(context->deadline() - std::chrono::system_clock::now());
    const Deadline deadline = Deadline::After(Clock::Real(), std::min(left, options_.deadline));
    const CallerWatch watch(*context, stopping_.get_token());
    const SendReport report = options_.send(wanted, deadline, watch.token());
    if (!report.status.ok()) return ToGrpc(report.status);
    ToProto(report.version, *out->mutable_version());
    out->set_bytes(report.bytes);
    return grpc::Status::OK;
  }

 private:
  const PeerSourceOptions options_;
  CallLimit sending_;
  std::stop_source stopping_;
};

PeerSourceService::PeerSourceService(PeerSourceOptions options)
    : service_(std::make_unique<Service>(std::move(options))) {}

PeerSourceService::~PeerSourceService() = default;

grpc::Service& PeerSourceService::service() { return *service_; }

void PeerSourceService::Stop() { service_->Stop(); }

}  // namespace bascule
