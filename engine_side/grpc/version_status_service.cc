#include "engine_side/grpc/version_status_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "bascule/v1/version_status.grpc.pb.h"
#include "base/grpc/call_limit.h"
#include "base/grpc/grpc_status.h"

namespace bascule {
namespace {

// How long a watch waits before it looks whether its client is still there.
constexpr Duration kWatchPoll = std::chrono::milliseconds(100);
constexpr int kTensorsPerPart = 1024;  // of names to 1024 bytes: a tenth of what a message may have

// What makes a new line of a watch.
using WatchedState = std::tuple<std::optional<SessionState>, std::optional<WeightVersion>, bool>;

WatchedState WatchedOf(const ReceiverStatus& status) {
  return {status.session ? std::optional(status.session->state) : std::nullopt, status.live, status.Ready()};
}

std::int64_t UnixMs(std::chrono::system_clock::time_point when) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(when.time_since_epoch()).count();
}

void Fill(const WeightVersion& version, v1::VersionId& out) {
  out.set_run(version.run);
  out.set_number(version.number);
  // A version that was aborted before its seal has no digest.
  if (!version.digest.IsZero()) out.set_digest(version.digest.bytes.data(), version.digest.bytes.size());
}

void Fill(const Status& status, v1::Failure& out) {
  out.set_code(std::string(StatusCodeName(status.code())));
  out.set_reason(status.reason());
  out.set_message(status.message());
}

void Fill(const SessionProgress& session, v1::SessionStatus& out) {
  out.set_state(std::string(SessionStateName(session.state)));
  out.set_version(session.version.number);
  out.set_received_bytes(session.received_bytes);
  out.set_total_bytes(session.total_bytes);
  out.set_carried_bytes(session.carried_bytes);
}

void Fill(const CacheDaemonStatus& cache, v1::CacheStatus& out) {
  out.set_instance(cache.instance.ToString());
  out.set_phase(std::string(CachePhaseName(cache.phase)));
  for (const CacheDaemonStatus::Object& object : cache.objects) {
    v1::CachedVersion& entry = *out.add_objects();
    Fill(object.version, *entry.mutable_version());
    entry.set_bytes(object.bytes);
    entry.set_live(object.live);
  }
  for (const AttachedEngine& engine : cache.engines) {
    v1::AttachedEngine& entry = *out.add_engines();
    entry.set_pid(engine.pid);
    entry.set_since_unix_ms(UnixMs(engine.since));
    if (!engine.run.empty()) Fill(WeightVersion{engine.run, engine.number, {}}, *entry.mutable_live());
    if (!engine.last_error.ok()) Fill(engine.last_error, *entry.mutable_error());
  }
}

void Fill(const ServingStatus& serving, v1::EngineStatus& out) {
  out.mutable_requests()->set_running(serving.running);
  out.mutable_requests()->set_waiting(serving.waiting);
  out.mutable_kv()->set_policy(serving.kv_policy);
  out.mutable_kv()->set_pages_used(serving.kv_pages_used);
  out.mutable_kv()->set_pages_total(serving.kv_pages_total);
  out.mutable_kv()->set_prefix_entries(serving.prefix_entries);
  if (serving.cache) Fill(*serving.cache, *out.mutable_cache());
}

void FillLive(const ReceiverStatus& status, v1::EngineStatus& out) {
  out.set_ready(status.Ready());
  if (status.required) Fill(*status.required, *out.mutable_required());
  for (std::size_t rank = 0; rank < status.slot_bytes.size(); ++rank) {
    v1::EngineRank& entry = *out.add_ranks();
    entry.set_rank(static_cast<std::int32_t>(rank));
    entry.set_slot_bytes(status.slot_bytes[rank]);
    if (status.live) Fill(*status.live, *entry.mutable_live());
  }
  if (!status.live) return;
  Fill(*status.live, *out.mutable_live());
  out.set_live_since_unix_ms(UnixMs(status.live_since));
  out.set_staleness(status.newest_seen > status.live->number ? status.newest_seen - status.live->number : 0);
}

void Fill(const ReceiverStatus& status, v1::EngineStatus& out) {
  FillLive(status, out);
  if (status.kept) Fill(*status.kept, *out.mutable_kept());
  if (status.session) Fill(*status.session, *out.mutable_session());
  if (!status.last_error.ok()) Fill(status.last_error, *out.mutable_last_error());
  out.mutable_flips()->set_count(status.flip_count);
  out.mutable_flips()->set_stall_us_p50(status.stall_us_p50);
  out.mutable_flips()->set_stall_us_p99(status.stall_us_p99);
  out.mutable_flips()->set_stall_us_max(status.stall_us_max);
}

// Classes that are not empty.
void Fill(const LatencyHistogram& histogram, google::protobuf::RepeatedPtrField<v1::LatencyClass>& out) {
  for (std::size_t i = 0; i < LatencyHistogram::kClasses; ++i) {
    if (histogram.counts()[i] == 0) continue;
    v1::LatencyClass& entry = *out.Add();
    entry.set_up_to_us(LatencyHistogram::UpToUs(i));
    entry.set_count(histogram.counts()[i]);
  }
}

LatencyHistogram StallsOf(const std::vector<HistoryEntry>& history) {
  LatencyHistogram stalls;
  for (const HistoryEntry& entry : history) {
    if (entry.committed && entry.kind != HistoryEntry::Kind::kInitial) stalls.AddUs(entry.flip_stall_us);
  }
  return stalls;
}

std::string_view KindName(HistoryEntry::Kind kind) {
  switch (kind) {
    case HistoryEntry::Kind::kInitial:
      return "initial";
    case HistoryEntry::Kind::kFull:
      return "full";
    case HistoryEntry::Kind::kRollback:
      return "rollback";
  }
  return "full";
}

void Fill(const HistoryEntry& entry, v1::HistoryRow& out) {
  Fill(entry.version, *out.mutable_version());
  out.set_kind(std::string(KindName(entry.kind)));
  out.set_committed(entry.committed);
  if (!entry.why.ok()) Fill(entry.why, *out.mutable_why());
  out.set_at_unix_ms(UnixMs(entry.at));
  out.set_bytes(entry.bytes);
  out.set_carried_bytes(entry.carried_bytes);
  out.set_stage_ms(entry.stage_ms);
  out.set_verify_ms(entry.verify_ms);
  out.set_flip_stall_us(entry.flip_stall_us);
}

void Fill(const TensorSpec& spec, const TensorDigest& digest, v1::LiveTensor& out) {
  out.set_name(spec.name);
  out.set_dtype(std::string(DTypeName(spec.dtype)));
  for (const std::int64_t extent : spec.shape) out.add_shape(extent);
  for (const std::uint64_t lane : digest.lane) out.add_digest(lane);
}

// Whether it arrives the caller knows: a stream that breaks has no status.
void WritePart(v1::DigestLiveResponse& part, grpc::ServerWriter<v1::DigestLiveResponse>& writer) {
  writer.Write(part);
  part.Clear();
}

// The caller's deadline, or `fallback` from now on where it has none or a later one.
Deadline DeadlineOf(const grpc::ServerContext& context, Duration fallback) {
  const auto left = std::chrono::duration_cast<Duration>(context.deadline() - std::chrono::system_clock::now());
  return Deadline::After(Clock::Real(), std::min(left, fallback));
}

}  // namespace

class EngineVersionStatusService::Service final : public v1::VersionStatus::Service {
 public:
  Service(WeightReceiver& receiver, VersionStatusOptions options)
      : receiver_(receiver),
        options_(std::move(options)),
        watchers_(options_.max_watchers),
        digests_(options_.max_digests) {}

  void Stop() { stopping_ = true; }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* out) override {
    Snapshot(receiver_.status(), *out);
    if (request->details()) FillDetails(*out->mutable_engine()->mutable_details());
    return grpc::Status::OK;
  }

  grpc::Status WatchStatus(grpc::ServerContext* context, const v1::WatchStatusRequest*,
                           grpc::ServerWriter<v1::WatchStatusResponse>* writer) override {
    const CallLimit::Place place(watchers_);
    if (const Status taken = place.Taken(); !taken.ok()) return ToGrpc(taken);
    std::uint64_t seen = 0;
    std::optional<WatchedState> last;
    while (!context->IsCancelled() && !stopping_) {
      const auto changes = receiver_.ChangesSince(seen, Deadline::After(Clock::Real(), kWatchPoll));
      if (!changes.ok() && changes.status().code() == StatusCode::kDeadlineExceeded) continue;
      if (!changes.ok()) return ToGrpc(changes.status());
      seen = changes->mark;
      for (const ReceiverStatus& status : changes->statuses) {
        if (last == WatchedOf(status)) continue;
        last = WatchedOf(status);
        v1::WatchStatusResponse line;
        Snapshot(status, *line.mutable_status());
        if (!writer->Write(line)) return grpc::Status::OK;
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status ListVersions(grpc::ServerContext*, const v1::ListVersionsRequest*,
                            v1::ListVersionsResponse* out) override {
    for (const HistoryEntry& entry : receiver_.History()) Fill(entry, *out->add_rows());
    return grpc::Status::OK;
  }

  grpc::Status DigestLive(grpc::ServerContext*, const v1::DigestLiveRequest*,
                          grpc::ServerWriter<v1::DigestLiveResponse>* writer) override {
    const CallLimit::Place place(digests_);
    if (const Status taken = place.Taken(); !taken.ok()) return ToGrpc(taken);
    const auto live = receiver_.DigestLive();
    if (!live.ok()) return ToGrpc(live.status());
    const std::vector<TensorSpec>& tensors = receiver_.layout().tensors;
    std::vector<std::size_t> by_name(tensors.size());
    std::iota(by_name.begin(), by_name.end(), std::size_t{0});
    std::sort(by_name.begin(), by_name.end(), [&](auto a, auto b) { return tensors[a].name < tensors[b].name; });
    v1::DigestLiveResponse part;
    for (const std::size_t t : by_name) {
      Fill(tensors[t], live->totals[t], *part.add_tensors());
      if (part.tensors_size() == kTensorsPerPart) WritePart(part, *writer);
    }
    for (const Verifier::Difference& difference : live->replica_differences) {
      v1::ReplicaDifference& entry = *part.add_replica_differences();
      entry.set_tensor(tensors[static_cast<std::size_t>(difference.tensor)].name);
      entry.set_what(difference.what);
      if (part.replica_differences_size() == kTensorsPerPart) WritePart(part, *writer);
    }
    WritePart(part, *writer);
    return grpc::Status::OK;
  }

  grpc::Status Rollback(grpc::ServerContext* context, const v1::RollbackRequest* request,
                        v1::RollbackResponse* out) override {
    const auto to = request->has_to() ? std::optional(request->to()) : std::nullopt;
    const auto report = receiver_.Rollback(to, DeadlineOf(*context, options_.rollback_deadline));
    if (!report.ok()) return ToGrpc(report.status());
    Fill(report->version, *out->mutable_version());
    out->set_flip_stall_us(report->flip_stall_us);
    return grpc::Status::OK;
  }

 private:
  void Snapshot(const ReceiverStatus& status, v1::GetStatusResponse& out) const {
    v1::EngineStatus& engine = *out.mutable_engine();
    engine.set_model(options_.model);
    Fill(status, engine);
    Fill(options_.serving(), engine);
  }

  void FillDetails(v1::EngineDetails& out) const {
    const ServingStatus serving = options_.serving();
    Fill(StallsOf(receiver_.History()), *out.mutable_stalls());
    Fill(serving.flip_gaps, *out.mutable_token_gaps());
    if (serving.staging_share) out.set_staging_share(*serving.staging_share);
    out.set_device(serving.device);
  }

  WeightReceiver& receiver_;
  const VersionStatusOptions options_;
  CallLimit watchers_;
  CallLimit digests_;
  std::atomic<bool> stopping_{false};
};

EngineVersionStatusService::EngineVersionStatusService(WeightReceiver& receiver, VersionStatusOptions options)
    : service_(std::make_unique<Service>(receiver, std::move(options))) {}

EngineVersionStatusService::~EngineVersionStatusService() = default;

grpc::Service& EngineVersionStatusService::service() { return *service_; }

void EngineVersionStatusService::Stop() { service_->Stop(); }

}  // namespace bascule
