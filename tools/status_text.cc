#include "tools/status_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace bascule {
namespace {

constexpr std::size_t kShortDigest = 12;

std::string Text(const Json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string ShortDigest(const Json& digest) { return Text(digest).substr(0, kShortDigest); }

std::string VersionText(const Json& version) {
  if (version.is_null()) return "-";
  return fmt::format("{} ({})", Text(version["version"]), ShortDigest(version["digest"]));
}

std::string LiveText(const Json& live) {
  if (live.is_null()) return "-";
  return fmt::format("{}@{} ({}) since {}", Text(live["run"]), Text(live["version"]), ShortDigest(live["digest"]),
                     Text(live["since"]));
}

// What came, and what a partial version has from the one before.
std::string WithCarried(const Json& bytes, const Json& row) {
  const std::string came = BytesText(bytes.get<std::int64_t>());
  if (!row.contains("carried_bytes")) return came;
  return fmt::format("{} + {} carried over", came, BytesText(row["carried_bytes"].get<std::int64_t>()));
}

std::string SessionText(const Json& session) {
  if (session.is_null()) return "-";
  return fmt::format("version {} {}, {} of {}", Text(session["version"]), Text(session["state"]),
                     BytesText(session["received_bytes"].get<std::int64_t>()),
                     WithCarried(session["total_bytes"], session));
}

std::string ErrorText(const Json& error) {
  if (error.is_null()) return "-";
  return fmt::format("{}: {}", Text(error["reason"]), Text(error["message"]));
}

std::string EngineText(const Json& status, const Output& out) {
  const bool ready = status["ready"].get<bool>();
  const Json& stall = status["flips"]["stall_us"];
  return TableText({{Text(status["role"]), Text(status["model"])},
                    {"state", ready ? out.Painted(Colour::kGood, "ready") : out.Painted(Colour::kBad, "not ready")},
                    {"live", LiveText(status["live"])},
                    {"kept", VersionText(status["kept"])},
                    {"staleness", Text(status["staleness"])},
                    {"session", SessionText(status["session"])},
                    {"last error", ErrorText(status["last_error"])},
                    {"requests", fmt::format("{} running, {} waiting", Text(status["requests"]["running"]),
                                             Text(status["requests"]["waiting"]))},
                    {"kv pages", fmt::format("{} of {} ({})", Text(status["kv"]["pages_used"]),
                                             Text(status["kv"]["pages_total"]), Text(status["kv"]["policy"]))},
                    {"flips", fmt::format("{}, stall p50 {} µs, p99 {} µs, max {} µs", Text(status["flips"]["count"]),
                                          Text(stall["p50"]), Text(stall["p99"]), Text(stall["max"]))}});
}

std::string HistogramText(std::string_view name, const Json& histogram) {
  std::vector<std::vector<std::string>> rows = {{std::string(name), "COUNT"}};
  for (const Json& entry : histogram)
    rows.push_back({fmt::format("<= {} µs", Text(entry["up_to"])), Text(entry["count"])});
  return TableText(rows);
}

std::string DetailsText(const Json& details) {
  return fmt::format("\n\n{}\n\n{}\n\nstaging share {}\ndecodes on {}",
                     HistogramText("STALLS", details["stall_histogram_us"]),
                     HistogramText("TOKEN GAPS", details["token_gap_histogram_us"]), Text(details["staging_share"]),
                     Text(details["device"]));
}

std::string RanksText(const Json& ranks) {
  std::vector<std::vector<std::string>> rows = {{"RANK", "LIVE", "DIGEST", "SLOT"}};
  for (const Json& rank : ranks) {
    rows.push_back({Text(rank["rank"]), Text(rank["live_version"]), ShortDigest(rank["digest"]),
                    BytesText(rank["slot_bytes"].get<std::int64_t>())});
  }
  return TableText(rows);
}

std::string CacheText(const Json& cache) {
  std::vector<std::vector<std::string>> objects = {{"VERSION", "RUN", "DIGEST", "BYTES", "LIVE"}};
  for (const Json& object : cache["objects"]) {
    objects.push_back({Text(object["version"]), Text(object["run"]), ShortDigest(object["digest"]),
                       BytesText(object["bytes"].get<std::int64_t>()), object["live"].get<bool>() ? "yes" : "no"});
  }
  std::vector<std::vector<std::string>> engines = {{"ENGINE PID", "SINCE", "VERSION", "RUN", "ERROR"}};
  for (const Json& engine : cache["engines"]) {
    engines.push_back({Text(engine["pid"]), Text(engine["since"]), Text(engine["version"]), Text(engine["run"]),
                       ErrorText(engine["error"])});
  }
  const std::string head = TableText({{"daemon", Text(cache["instance"])}, {"phase", Text(cache["phase"])}});
  return head + "\n\n" + TableText(objects) + "\n\n" + TableText(engines);
}

std::string PublisherText(const Json& status) {
  std::vector<std::vector<std::string>> rows = {
      {"REPLICA", "STATE", "VERSION", "DIGEST", "STALENESS", "READY", "ERROR"}};
  for (const Json& replica : status["replicas"]) {
    rows.push_back({Text(replica["address"]), Text(replica["state"]), Text(replica["version"]),
                    ShortDigest(replica["digest"]), Text(replica["staleness"]),
                    replica["ready"].get<bool>() ? "yes" : "no", ErrorText(replica["error"])});
  }
  const std::string head = TableText({{"publisher", status["publishing"].get<bool>() ? "publishing" : "idle"},
                                      {"newest", VersionText(status["newest"])},
                                      {"committed", VersionText(status["committed"])}});
  return head + "\n\n" + TableText(rows);
}

}  // namespace

std::string StatusText(const Json& status, const Output& out) {
  if (status["role"] == "publisher") return PublisherText(status);
  const std::string details = status.contains("details") ? DetailsText(status["details"]) : "";
  if (status.contains("cache")) return EngineText(status, out) + "\n\n" + CacheText(status["cache"]);
  return EngineText(status, out) + "\n\n" + RanksText(status["ranks"]) + details;
}

std::string HistoryText(const std::vector<Json>& history) {
  std::vector<std::vector<std::string>> rows = {
      {"VERSION", "RUN", "DIGEST", "KIND", "OUTCOME", "REASON", "AT", "BYTES", "STAGE", "VERIFY", "STALL"}};
  for (const Json& row : history) {
    rows.push_back({Text(row["version"]), Text(row["run"]), ShortDigest(row["digest"]), Text(row["kind"]),
                    Text(row["outcome"]), Text(row["reason"]), Text(row["at"]), WithCarried(row["bytes"], row),
                    fmt::format("{:.1f} ms", row["stage_ms"].get<double>()),
                    fmt::format("{:.1f} ms", row["verify_ms"].get<double>()),
                    fmt::format("{} µs", Text(row["flip_stall_us"]))});
  }
  return TableText(rows);
}

}  // namespace bascule
