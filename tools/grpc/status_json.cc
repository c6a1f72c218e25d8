#include <chrono>
#include <cmath>

#include "base/clock.h"
#include "base/hex.h"
#include "tools/grpc/status_json_internal.h"

namespace bascule {
namespace {

Json TimeJson(std::int64_t unix_ms) {
  return Rfc3339(std::chrono::system_clock::time_point(std::chrono::milliseconds(unix_ms)));
}

Json DigestJson(const std::string& digest) {
  if (digest.empty()) return nullptr;
  return HexOf(std::as_bytes(std::span(digest)));
}

Json VersionJson(const v1::VersionId& version) {
  return {{"version", version.number()}, {"run", version.run()}, {"digest", DigestJson(version.digest())}};
}

Json MicrosecondsJson(double us) { return std::isfinite(us) ? std::llround(us) : 0; }

Json FailureJson(const v1::Failure& failure) {
  return {{"code", failure.code()}, {"reason", failure.reason()}, {"message", failure.message()}};
}

Json LiveJson(const v1::EngineStatus& engine) {
  if (!engine.has_live()) return nullptr;
  return {{"version", engine.live().number()},
          {"run", engine.live().run()},
          {"digest", DigestJson(engine.live().digest())},
          {"since", TimeJson(engine.live_since_unix_ms())}};
}

Json KeptJson(const v1::EngineStatus& engine) {
  if (!engine.has_kept()) return nullptr;
  return {{"version", engine.kept().number()}, {"digest", DigestJson(engine.kept().digest())}};
}

Json SessionJson(const v1::EngineStatus& engine) {
  if (!engine.has_session()) return nullptr;
  const v1::SessionStatus& session = engine.session();
  Json json = {{"state", session.state()},
               {"version", session.version()},
               {"received_bytes", session.received_bytes()},
               {"total_bytes", session.total_bytes()}};
  if (session.carried_bytes() > 0) json["carried_bytes"] = session.carried_bytes();
  return json;
}

Json RanksJson(const v1::EngineStatus& engine) {
  Json ranks = Json::array();
  for (const v1::EngineRank& rank : engine.ranks()) {
    const bool live = rank.has_live();
    ranks.push_back({{"rank", rank.rank()},
                     {"live_version", live ? Json(rank.live().number()) : Json(nullptr)},
                     {"digest", live ? DigestJson(rank.live().digest()) : Json(nullptr)},
                     {"slot_bytes", rank.slot_bytes()}});
  }
  return ranks;
}

Json FlipsJson(const v1::FlipStatus& flips) {
  return {{"count", flips.count()},
          {"stall_us",
           {{"p50", MicrosecondsJson(flips.stall_us_p50())},
            {"p99", MicrosecondsJson(flips.stall_us_p99())},
            {"max", MicrosecondsJson(flips.stall_us_max())}}}};
}

Json HistogramJson(const google::protobuf::RepeatedPtrField<v1::LatencyClass>& classes) {
  Json histogram = Json::array();
  for (const v1::LatencyClass& entry : classes) {
    histogram.push_back({{"up_to", entry.up_to_us()}, {"count", entry.count()}});
  }
  return histogram;
}

Json DetailsJson(const v1::EngineDetails& details) {
  return {{"stall_histogram_us", HistogramJson(details.stalls())},
          {"token_gap_histogram_us", HistogramJson(details.token_gaps())},
          {"staging_share", details.has_staging_share() ? Json(details.staging_share()) : Json(nullptr)},
          {"device", details.device().empty() ? Json(nullptr) : Json(details.device())}};
}

Json CacheJson(const v1::CacheStatus& cache) {
  Json objects = Json::array(), engines = Json::array();
  for (const v1::CachedVersion& object : cache.objects()) {
    Json entry = VersionJson(object.version());
    entry["bytes"] = object.bytes();
    entry["live"] = object.live();
    objects.push_back(std::move(entry));
  }
  for (const v1::AttachedEngine& engine : cache.engines()) {
    engines.push_back({{"pid", engine.pid()},
                       {"since", TimeJson(engine.since_unix_ms())},
                       {"version", engine.has_live() ? Json(engine.live().number()) : Json(nullptr)},
                       {"run", engine.has_live() ? Json(engine.live().run()) : Json(nullptr)},
                       {"error", engine.has_error() ? FailureJson(engine.error()) : Json(nullptr)}});
  }
  return {{"instance", cache.instance()},
          {"phase", cache.phase()},
          {"objects", std::move(objects)},
          {"engines", std::move(engines)}};
}

Json EngineJson(const v1::EngineStatus& engine) {
  Json object = {{"role", engine.has_cache() ? "daemon" : "engine"},
                 {"model", engine.model()},
                 {"live", LiveJson(engine)},
                 {"kept", KeptJson(engine)},
                 {"session", SessionJson(engine)},
                 {"last_error", engine.has_last_error() ? FailureJson(engine.last_error()) : Json(nullptr)},
                 {"ranks", RanksJson(engine)},
                 {"requests", {{"running", engine.requests().running()}, {"waiting", engine.requests().waiting()}}},
                 {"kv",
                  {{"policy", engine.kv().policy()},
                   {"pages_used", engine.kv().pages_used()},
                   {"pages_total", engine.kv().pages_total()},
                   {"prefix_entries", engine.kv().prefix_entries()}}},
                 {"flips", FlipsJson(engine.flips())},
                 {"staleness", engine.has_staleness() ? Json(engine.staleness()) : Json(nullptr)},
                 {"ready", engine.ready()}};
  if (engine.has_required()) object["required"] = VersionJson(engine.required());
  if (engine.has_cache()) object["cache"] = CacheJson(engine.cache());
  if (engine.has_details()) object["details"] = DetailsJson(engine.details());
  return object;
}

Json PublisherJson(const v1::PublisherStatus& publisher) {
  const Json newest = publisher.has_newest() ? VersionJson(publisher.newest()) : Json(nullptr);
  Json replicas = Json::array();
  for (const v1::ReplicaStatus& replica : publisher.replicas()) {
    replicas.push_back({{"address", replica.address()},
                        {"state", replica.state()},
                        {"ready", replica.ready()},
                        {"version", replica.has_version() ? Json(replica.version()) : Json(nullptr)},
                        {"digest", replica.has_live() ? DigestJson(replica.live().digest()) : Json(nullptr)},
                        {"staleness", replica.staleness()},
                        {"failures", replica.failures()},
                        {"retry_in_ms", replica.retry_in_us() / 1000},
                        {"error", replica.has_error() ? FailureJson(replica.error()) : Json(nullptr)}});
  }
  return {{"role", "publisher"},
          {"newest", newest},
          {"committed", publisher.has_committed() ? VersionJson(publisher.committed()) : Json(nullptr)},
          {"publishing", publisher.publishing()},
          {"replicas", std::move(replicas)}};
}

}  // namespace

Json JsonOf(const v1::GetStatusResponse& status) {
  return status.has_publisher() ? PublisherJson(status.publisher()) : EngineJson(status.engine());
}

Json JsonOf(const v1::HistoryRow& row) {
  Json json = {{"version", row.version().number()},
               {"run", row.version().run()},
               {"digest", DigestJson(row.version().digest())},
               {"kind", row.kind()},
               {"outcome", row.committed() ? "committed" : "aborted"},
               {"reason", row.has_why() ? Json(row.why().reason()) : Json(nullptr)},
               {"at", row.has_at_unix_ms() ? TimeJson(row.at_unix_ms()) : Json(nullptr)},
               {"bytes", row.bytes()},
               {"stage_ms", row.stage_ms()},
               {"verify_ms", row.verify_ms()},
               {"flip_stall_us", MicrosecondsJson(row.flip_stall_us())}};
  if (row.carried_bytes() > 0) json["carried_bytes"] = row.carried_bytes();
  return json;
}

Json JsonOf(const v1::RollbackResponse& answer) {
  Json json = {{"version", answer.version().number()},
               {"digest", DigestJson(answer.version().digest())},
               {"flip_stall_us", MicrosecondsJson(answer.flip_stall_us())}};
  if (answer.replicas().empty()) return json;
  json["replicas"] = Json::array();
  for (const v1::ReplicaStatus& replica : answer.replicas()) {
    json["replicas"].push_back({{"address", replica.address()},
                                {"state", replica.state()},
                                {"error", replica.has_error() ? FailureJson(replica.error()) : Json(nullptr)}});
  }
  return json;
}

}  // namespace bascule
