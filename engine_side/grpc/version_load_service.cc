#include "engine_side/grpc/version_load_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "bascule/v1/version_load.grpc.pb.h"
#include "base/grpc/call_limit.h"
#include "base/grpc/grpc_status.h"
#include "bridge/session/grpc/fleet_codec_internal.h"
#include "engine_side/grpc/caller_watch_internal.h"

namespace bascule {
namespace {

Result<VersionLoadRequest> RequestOf(const v1::LoadVersionRequest& in) {
  VersionLoadRequest request{.path = in.path(),
                             .number = in.number(),
                             .run = in.run(),
                             .new_run = in.new_run(),
                             .ignore = {in.ignore().begin(), in.ignore().end()},
                             .scope = {in.scope().begin(), in.scope().end()},
                             .base = std::nullopt};
  if (!in.has_base()) return request;
  ASSIGN_OR_RETURN(request.base, FromProto(in.base()));
  return request;
}

void Fill(const SendReport& report, v1::LoadVersionResponse& out) {
  const FlipReport& flip = report.flip;
  ToProto(report.version, *out.mutable_version());
  out.set_bytes(report.bytes);
  out.set_stage_ms(report.stage_ms);
  out.set_verify_ms(report.verify_ms);
  out.set_flip_stall_us(flip.flip_stall_us);
  out.set_recomputed(flip.kv.recomputed);
  out.set_drained(flip.kv.drained);
  out.set_kept(flip.kv.kept);
  out.set_aborted(flip.kv.aborted);
  out.set_recompute_tokens(flip.kv.recompute_tokens);
}

}  // namespace

class VersionLoadService::Service final : public v1::VersionLoad::Service {
 public:
  explicit Service(VersionLoadOptions options) : options_(std::move(options)), loads_(options_.at_once) {}

  void Stop() { stopping_.request_stop(); }

  grpc::Status LoadVersion(grpc::ServerContext* context, const v1::LoadVersionRequest* request,
                           v1::LoadVersionResponse* out) override {
    const CallLimit::Place place(loads_);
    if (const Status taken = place.Taken(); !taken.ok()) return ToGrpc(taken);
    const Result<VersionLoadRequest> wanted = RequestOf(*request);
    if (!wanted.ok()) return ToGrpc(wanted.status());
    const auto left = std::chrono::duration_cast<Duration>(context->deadline() - std::chrono::system_clock::now());
    const Deadline deadline = Deadline::After(Clock::Real(), std::min(left, options_.deadline));
    const CallerWatch watch(*context, stopping_.get_token());
    const SendReport report = options_.load(*wanted, deadline, watch.token());
    if (!report.status.ok()) return ToGrpc(report.status);
    Fill(report, *out);
    return grpc::Status::OK;
  }

 private:
  const VersionLoadOptions options_;
  CallLimit loads_;
  std::stop_source stopping_;
};

VersionLoadService::VersionLoadService(VersionLoadOptions options)
    : service_(std::make_unique<Service>(std::move(options))) {}

VersionLoadService::~VersionLoadService() = default;

grpc::Service& VersionLoadService::service() { return *service_; }

void VersionLoadService::Stop() { service_->Stop(); }

}  // namespace bascule
