#include <array>
#include <cmath>
#include <utility>

#include "base/error_text.h"
#include "bridge/session/grpc/layout_codec_internal.h"
#include "bridge/session/grpc/session_parts_codec_internal.h"

namespace bascule {
namespace {

constexpr std::int64_t kMaxTimeLeftUs = std::int64_t{366} * 24 * 3600 * 1'000'000;

constexpr std::size_t kMaxReasonBytes = 128;

constexpr std::array kTransports = {
    std::pair{TransportKind::kLoopback, v1::TRANSPORT_LOOPBACK},
    std::pair{TransportKind::kShm, v1::TRANSPORT_SHM},
    std::pair{TransportKind::kGrpc, v1::TRANSPORT_GRPC},
    std::pair{TransportKind::kCudaIpc, v1::TRANSPORT_CUDA_IPC},
    std::pair{TransportKind::kNccl, v1::TRANSPORT_NCCL},
};

}  // namespace

v1::Transport ToProto(TransportKind kind) {
  for (const auto& [ours, theirs] : kTransports) {
    if (ours == kind) return theirs;
  }
  return v1::TRANSPORT_UNSPECIFIED;
}

void ToProto(const TransportEndpoint& endpoint, v1::Endpoint* proto) {
  proto->set_kind(ToProto(endpoint.kind));
  proto->set_address(endpoint.address);
}

void ToProto(const PlanOptions& options, v1::PlanOptions* proto) {
  proto->set_bucket_bytes(options.bucket_bytes);
  for (const std::string& pattern : options.ignore) proto->add_ignore(pattern);
  proto->set_window_bytes(options.window_bytes);
  for (const std::string& pattern : options.scope) proto->add_scope(pattern);
  proto->set_twins(options.twins);
}

void ToProto(const FlipReport& report, v1::FlipReport* proto) {
  ToProto(report.version, proto->mutable_version());
  proto->set_step(report.step);
  proto->set_flip_stall_us(report.flip_stall_us);
  v1::KvReport* kv = proto->mutable_kv();
  kv->set_recomputed(report.kv.recomputed);
  kv->set_drained(report.kv.drained);
  kv->set_kept(report.kv.kept);
  kv->set_aborted(report.kv.aborted);
  kv->set_recompute_tokens(report.kv.recompute_tokens);
  kv->set_too_stale(report.kv.too_stale);
  kv->set_prefix_entries_dropped(report.kv.prefix_entries_dropped);
  for (const CacheReport& cache : report.kv.caches) {
    v1::CacheReport* entry = kv->add_caches();
    entry->set_cache(cache.cache);
    entry->set_dropped(cache.dropped);
    entry->set_kept(cache.kept);
  }
}

std::int64_t MicrosecondsOf(Duration time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

PlanOptions FromProto(const v1::PlanOptions& proto) {
  return {.bucket_bytes = proto.bucket_bytes(),
          .ignore = {proto.ignore().begin(), proto.ignore().end()},
          .window_bytes = proto.window_bytes(),
          .scope = {proto.scope().begin(), proto.scope().end()},
          .twins = proto.twins()};
}

Result<TransportKind> TransportFromProto(std::string_view field, v1::Transport transport) {
  for (const auto& [ours, theirs] : kTransports) {
    if (theirs == transport) return ours;
  }
  return BadMessage(field, fmt::format("unknown transport {}", static_cast<int>(transport)));
}

Result<TransportEndpoint> FromProto(std::string_view field, const v1::Endpoint& proto) {
  ASSIGN_OR_RETURN(const TransportKind kind, TransportFromProto(field, proto.kind()));
  return TransportEndpoint{kind, proto.address()};
}

Result<FlipReport> FromProto(const v1::FlipReport& proto) {
  FlipReport report;
  ASSIGN_OR_RETURN(report.version, FromProto(proto.version()));
  report.step = proto.step();
  ASSIGN_OR_RETURN(report.flip_stall_us, TimeFromProto("report.flip_stall_us", proto.flip_stall_us()));
  const v1::KvReport& kv = proto.kv();
  report.kv = {.recomputed = kv.recomputed(),
               .drained = kv.drained(),
               .kept = kv.kept(),
               .aborted = kv.aborted(),
               .recompute_tokens = kv.recompute_tokens(),
               .too_stale = kv.too_stale(),
               .prefix_entries_dropped = kv.prefix_entries_dropped()};
  for (const v1::CacheReport& cache : kv.caches()) {
    report.kv.caches.push_back({cache.cache(), cache.dropped(), cache.kept()});
  }
  return report;
}

Result<Duration> TimeLeftFromProto(std::string_view field, std::int64_t microseconds) {
  if (microseconds < 0 || microseconds > kMaxTimeLeftUs) {
    return BadMessage(field, fmt::format("{} is outside [0, {}]", microseconds, kMaxTimeLeftUs));
  }
  return Duration(std::chrono::microseconds(microseconds));
}

Result<double> TimeFromProto(std::string_view field, double value) {
  if (!std::isfinite(value) || value < 0) return BadMessage(field, "no duration");
  return value;
}

Status FailureFromProto(std::string_view field, const std::string& code, const std::string& reason,
                        const std::string& message, Status& failure) {
  if (reason.size() > kMaxReasonBytes) return BadMessage(field, fmt::format("a reason of {} bytes", reason.size()));
  for (int number = 1; number <= static_cast<int>(StatusCode::kInternal); ++number) {
    const auto known = static_cast<StatusCode>(number);
    if (StatusCodeName(known) != code) continue;
    failure = Status(known, reason, std::string(BeginningOf(message, kMaxErrorTextBytes)));
    return OkStatus();
  }
  return BadMessage(field, "unknown");
}

}  // namespace bascule
