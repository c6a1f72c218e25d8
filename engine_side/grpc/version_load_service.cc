#include "engine_side/grpc/version_load_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "bascule/v1/version_load.grpc.pb.h"
#include "base/grpc/grpc_status.h"
#include "engine_side/grpc/caller_watch_internal.h"

namespace bascule {
namespace {

void Fill(const SendReport& report, v1::LoadVersionResponse& out) {
  const FlipReport& flip = report.flip;
  out.mutable_version()->set_run(report.version.run);
  out.mutable_version()->set_number(report.version.number);
  out.mutable_version()->set_digest(report.version.digest.bytes.data(), report.version.digest.bytes.size());
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
  explicit Service(VersionLoadOptions options) : options_(std::move(options)) {}

  void Stop() { stopping_.request_stop(); }

  grpc::Status LoadVersion(grpc::ServerContext* context, const v1::LoadVersionRequest* request,
                           v1::LoadVersionResponse* out) override {
    const auto left = std::chrono::duration_cast<Duration>(context->deadline() - std::chrono::system_clock::now());
    const Deadline deadline = Deadline::After(Clock::Real(), std::min(left, options_.deadline));
    const CallerWatch watch(*context, stopping_.get_token());
    const SendReport report = options_.load({.path = request->path(),
                                             .number = request->number(),
                                             .run = request->run(),
                                             .new_run = request->new_run(),
                                             .ignore = {request->ignore().begin(), request->ignore().end()}},
                                            deadline, watch.token());
    if (!report.status.ok()) return ToGrpc(report.status);
    Fill(report, *out);
    return grpc::Status::OK;
  }

 private:
  const VersionLoadOptions options_;
  std::stop_source stopping_;
};

VersionLoadService::VersionLoadService(VersionLoadOptions options)
    : service_(std::make_unique<Service>(std::move(options))) {}

VersionLoadService::~VersionLoadService() = default;

grpc::Service& VersionLoadService::service() { return *service_; }

void VersionLoadService::Stop() { service_->Stop(); }

}  // namespace bascule
