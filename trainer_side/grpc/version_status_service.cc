#include "trainer_side/grpc/version_status_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "bascule/v1/version_status.grpc.pb.h"
#include "base/error_text.h"
#include "base/grpc/call_limit.h"
#include "base/grpc/grpc_status.h"

namespace bascule {
namespace {

// How long a watch waits before it looks whether its client is still there.
constexpr Duration kWatchPoll = std::chrono::milliseconds(100);
constexpr int kMaxWatchers = 256;                            // at a time, each on a thread of the server's
constexpr std::size_t kErrorTextBytes = 1024;                // of each replica: a fleet's status is one message
constexpr Duration kRollbackTime = std::chrono::minutes(5);  // where a caller has no deadline, or a later one

void Fill(const WeightVersion& version, v1::VersionId& out) {
  out.set_run(version.run);
  out.set_number(version.number);
  if (!version.digest.IsZero()) out.set_digest(version.digest.bytes.data(), version.digest.bytes.size());
}

void Fill(const Status& status, v1::Failure& out) {
  out.set_code(std::string(StatusCodeName(status.code())));
  out.set_reason(status.reason());
  out.set_message(std::string(BeginningOf(status.message(), kErrorTextBytes)));
}

void Fill(const ReplicaReport& replica, v1::ReplicaStatus& out) {
  out.set_address(replica.address);
  out.set_state(std::string(ReplicaStateName(replica.state)));
  out.set_phase(replica.phase);
  if (replica.status.ok()) {
    out.set_version(replica.flip.version.number);
  } else {
    Fill(replica.status, *out.mutable_error());
  }
}

void Fill(const FleetRow& row, v1::ReplicaStatus& out) {
  out.set_address(row.address);
  out.set_state(row.state);
  if (row.live) {
    Fill(*row.live, *out.mutable_live());
    out.set_version(row.live->number);
  }
  if (!row.last_error.ok()) {
    Fill(row.last_error, *out.mutable_error());
    out.set_phase(row.phase);
  }
  out.set_staleness(row.staleness);
  out.set_ready(row.ready);
  out.set_failures(row.failures);
  out.set_retry_in_us(std::chrono::duration_cast<std::chrono::microseconds>(row.retry_in).count());
}

void Fill(const PublisherStatus& status, v1::GetStatusResponse& out) {
  v1::PublisherStatus& publisher = *out.mutable_publisher();
  if (!status.newest.run.empty()) Fill(status.newest, *publisher.mutable_newest());
  publisher.set_publishing(status.publishing);
  if (status.committed) Fill(*status.committed, *publisher.mutable_committed());
  for (const FleetRow& row : status.fleet) Fill(row, *publisher.add_replicas());
}

// One row a publish: it took as long as its slowest replica, and failed with the first one that did.
void Fill(const PublishReport& report, v1::HistoryRow& out) {
  Fill(report.version, *out.mutable_version());
  out.set_kind("full");
  out.set_committed(report.AllCommitted());
  out.set_at_unix_ms(std::chrono::duration_cast<std::chrono::milliseconds>(report.at.time_since_epoch()).count());
  out.set_bytes(report.bytes);
  for (const ReplicaReport& replica : report.replicas) {
    if (!replica.status.ok() && !out.has_why()) Fill(replica.status, *out.mutable_why());
    out.set_stage_ms(std::max(out.stage_ms(), replica.stage_ms));
    out.set_verify_ms(std::max(out.verify_ms(), replica.verify_ms));
    out.set_flip_stall_us(std::max(out.flip_stall_us(), replica.flip.flip_stall_us));
  }
}

grpc::Status NotAnEngine() {
  return ToGrpc(Status::Unimplemented("not_an_engine", "this is a publisher; ask one of its replicas"));
}

}  // namespace

class PublisherVersionStatusService::Service final : public v1::VersionStatus::Service {
 public:
  explicit Service(WeightPublisher& publisher) : publisher_(publisher) {}

  void Stop() { stopping_ = true; }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*, v1::GetStatusResponse* out) override {
    Fill(publisher_.status(), *out);
    return grpc::Status::OK;
  }

  grpc::Status WatchStatus(grpc::ServerContext* context, const v1::WatchStatusRequest*,
                           grpc::ServerWriter<v1::WatchStatusResponse>* writer) override {
    const CallLimit::Place place(watchers_);
    if (const Status taken = place.Taken(); !taken.ok()) return ToGrpc(taken);
    std::uint64_t seen = 0;
    while (!context->IsCancelled() && !stopping_) {
      const auto mark = publisher_.WaitForChange(seen, Deadline::After(Clock::Real(), kWatchPoll));
      if (!mark.ok() && mark.status().code() == StatusCode::kDeadlineExceeded) continue;
      if (!mark.ok()) return ToGrpc(mark.status());
      seen = *mark;
      v1::WatchStatusResponse line;
      Fill(publisher_.status(), *line.mutable_status());
      if (!writer->Write(line)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status ListVersions(grpc::ServerContext*, const v1::ListVersionsRequest*,
                            v1::ListVersionsResponse* out) override {
    for (const PublishReport& report : publisher_.History()) Fill(report, *out->add_rows());
    return grpc::Status::OK;
  }

  grpc::Status DigestLive(grpc::ServerContext*, const v1::DigestLiveRequest*,
                          grpc::ServerWriter<v1::DigestLiveResponse>*) override {
    return NotAnEngine();
  }
  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::RollbackResponse* out) override {
    const auto to = request->has_to() ? std::optional(request->to()) : std::nullopt;
    const auto left = std::chrono::duration_cast<Duration>(context->deadline() - std::chrono::system_clock::now());
    const Deadline deadline = Deadline::After(Clock::Real(), std::min(left, kRollbackTime));
    const Result<FleetRollback> rollback = publisher_.RollBack(to, deadline);
    if (!rollback.ok()) return ToGrpc(rollback.status());
    Fill(rollback->version, *out->mutable_version());
    for (const ReplicaReport& replica : rollback->replicas) {
      Fill(replica, *out->add_replicas());
      out->set_flip_stall_us(std::max(out->flip_stall_us(), replica.flip.flip_stall_us));
    }
    return grpc::Status::OK;
  }

 private:
  WeightPublisher& publisher_;
  CallLimit watchers_{kMaxWatchers};
  std::atomic<bool> stopping_{false};
};

PublisherVersionStatusService::PublisherVersionStatusService(WeightPublisher& publisher)
    : service_(std::make_unique<Service>(publisher)) {}

PublisherVersionStatusService::~PublisherVersionStatusService() = default;

grpc::Service& PublisherVersionStatusService::service() { return *service_; }

void PublisherVersionStatusService::Stop() { service_->Stop(); }

}  // namespace bascule
