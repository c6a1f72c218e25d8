#include "tools/publish_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace bascule {
namespace {

Outcome OutcomeOf(const ReplicaReport& replica) { return {replica.status, replica.address, replica.phase}; }

Json KvJson(const KvReport& kv) {
  return {{"recomputed", kv.recomputed},
          {"drained", kv.drained},
          {"kept", kv.kept},
          {"aborted", kv.aborted},
          {"recompute_tokens", kv.recompute_tokens}};
}

Json ReplicaJson(const ReplicaReport& replica) {
  const bool committed = replica.status.ok();
  return {{"address", replica.address},
          {"state", ReplicaStateName(replica.state)},
          {"stage_ms", replica.stage_ms},
          {"verify_ms", replica.verify_ms},
          {"flip_stall_us", std::llround(replica.flip.flip_stall_us)},
          {"digest", committed ? Json(replica.flip.version.digest.ToHex()) : Json(nullptr)},
          {"kv", KvJson(replica.flip.kv)},
          {"error", committed ? Json(nullptr) : ErrorJson(OutcomeOf(replica))}};
}

// Nothing for a replica that failed before it had chosen one.
std::optional<std::string> TransportOf(const ReplicaReport& replica, std::string_view transport) {
  if (!transport.empty()) return std::string(transport);
  const bool unchosen = replica.phase == "connect" || replica.phase == "hello" || replica.phase == "plan";
  return unchosen ? std::nullopt : std::optional(std::string(TransportName(replica.transport)));
}

Json TransportJson(const PublishReport& report, std::string_view named) {
  for (const ReplicaReport& replica : report.replicas) {
    if (const auto transport = TransportOf(replica, named)) return *transport;
  }
  return nullptr;
}

std::string VersionText(const PublishReport& report) {
  if (report.version.digest.IsZero()) return "nothing was published";
  std::string text = fmt::format("version  {} (digest {}), {}", report.version.ToString(),
                                 report.version.digest.ToHex(), BytesText(report.bytes));
  if (report.base) {
    text +=
        fmt::format("\nscope    {}; the rest is that of {}", fmt::join(report.scope, ", "), report.base->ToString());
  }
  return text;
}

Json BaseJson(const std::optional<WeightVersion>& base) {
  if (!base) return nullptr;
  return {{"version", base->number}, {"run", base->run}, {"digest", base->digest.ToHex()}};
}

}  // namespace

Json PublishReportJson(const PublishReport& report, std::string_view transport) {
  Json replicas = Json::array();
  for (const ReplicaReport& replica : report.replicas) replicas.push_back(ReplicaJson(replica));
  const bool sealed = !report.version.digest.IsZero();
  Json json = {{"version", report.version.number},
               {"version_digest", sealed ? Json(report.version.digest.ToHex()) : Json(nullptr)},
               {"bytes", report.bytes},
               {"wire_bytes", report.wire_bytes},
               {"transport", TransportJson(report, transport)},
               {"replicas", std::move(replicas)}};
  if (!report.scope.empty()) {
    json["scope"] = report.scope;
    json["base"] = BaseJson(report.base);
  }
  return json;
}

std::string PublishReportText(const PublishReport& report, const Output& out, std::string_view transport) {
  std::vector<std::vector<std::string>> rows = {{"REPLICA", "STATE", "TRANSPORT", "STAGE", "VERIFY", "STALL"}};
  for (const ReplicaReport& replica : report.replicas) {
    const Colour colour = replica.status.ok() ? Colour::kGood : Colour::kBad;
    rows.push_back({replica.address, out.Painted(colour, ReplicaStateName(replica.state)),
                    TransportOf(replica, transport).value_or("-"), fmt::format("{:.1f} ms", replica.stage_ms),
                    fmt::format("{:.1f} ms", replica.verify_ms), fmt::format("{:.0f} µs", replica.flip.flip_stall_us)});
  }
  return VersionText(report) + "\n\n" + TableText(rows);
}

Outcome PublishOutcome(const PublishReport& report) {
  for (const int code : {kExitVerificationFailed, kExitUnreachable, kExitFailed, kExitInterrupted}) {
    for (const ReplicaReport& replica : report.replicas) {
      if (!replica.status.ok() && ExitCodeOf(replica.status) == code) return OutcomeOf(replica);
    }
  }
  return {};
}

}  // namespace bascule
