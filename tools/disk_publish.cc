#include "tools/disk_publish.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hex.h"
#include "base/worker.h"
#include "tools/grpc/version_load_client.h"
#include "tools/grpc/version_status_client.h"
#include "tools/publish_report.h"

namespace bascule {
namespace {

constexpr std::string_view kTransport = "disk";

// What a replica has live, and the highest number that it has committed in `run` or, without one, in that one's run.
struct Standing {
  WeightVersion live;
  std::uint64_t highest = 0;
};

Result<WeightVersion> VersionOf(const Json& live) {
  WeightVersion version{.run = live["run"].get<std::string>(), .number = live["version"].get<std::uint64_t>()};
  ASSIGN_OR_RETURN(const std::vector<std::byte> digest, BytesOfHex(live["digest"].get<std::string>()));
  if (digest.size() != version.digest.bytes.size()) return Status::DataLoss("bad_message", "live.digest");
  std::ranges::copy(digest, version.digest.bytes.begin());
  return version;
}

Result<Standing> StandingOf(const DiskPublish& publish, const std::string& address, Deadline deadline,
                            const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto client, VersionStatusClient::Connect(address, deadline, publish.security));
  ASSIGN_OR_RETURN(const Json status, client->GetStatus(deadline, stop));
  if (!status.contains("live") || status["live"].is_null()) {
    return Status::FailedPrecondition("nothing_live", "no version is live yet; give --version and --new-run --run");
  }
  Standing standing;
  ASSIGN_OR_RETURN(standing.live, VersionOf(status["live"]));
  const std::string of_run = publish.run.empty() ? standing.live.run : publish.run;
  ASSIGN_OR_RETURN(const std::vector<Json> rows, client->ListVersions(deadline, stop));
  for (const Json& row : rows) {
    if (row["outcome"] != "committed" || row["run"] != of_run) continue;
    standing.highest = std::max(standing.highest, row["version"].get<std::uint64_t>());
  }
  return standing;
}

// As of a version that is sent: the newest that a replica has live, and not the version that is being finished.
void ConsiderAsBase(const WeightVersion& live, const DiskPublish& publish, std::optional<WeightVersion>& base) {
  if (live.number == publish.version && (publish.run.empty() || live.run == publish.run)) return;
  if (!base || (live.run == base->run && live.number > base->number)) base = live;
}

// What is left to the replicas: the number, and the base of a partial version. The first that cannot be asked is `peer`
// of the failure.
Outcome AskReplicas(const DiskPublish& publish, Deadline deadline, const std::stop_token& stop, DiskVersion& version) {
  const bool is_partial = !publish.scope.empty();
  if (publish.version && !is_partial) return {};
  for (const std::string& address : publish.to) {
    const auto standing = StandingOf(publish, address, deadline, stop);
    if (!standing.ok()) return {standing.status(), address, "connect"};
    if (!publish.version) version.number = std::max(version.number, standing->highest + 1);
    if (is_partial) ConsiderAsBase(standing->live, publish, version.base);
  }
  if (!is_partial || version.base) return {};
  return Status::FailedPrecondition("wrong_base", "no replica has a live version that a partial one could build on");
}

ReplicaReport ReplicaOf(const std::string& address, const SendReport& report) {
  ReplicaReport replica;
  replica.address = address;
  replica.status = report.status;
  replica.state = report.status.ok() ? ReplicaState::kCommitted : ReplicaState::kAborted;
  replica.phase = std::string(SendPhaseName(report.phase));
  replica.stage_ms = report.stage_ms;
  replica.verify_ms = report.verify_ms;
  replica.flip = report.flip;
  return replica;
}

PublishReport Summary(const DiskPublish& publish, const DiskVersion& version, const std::vector<SendReport>& reports) {
  PublishReport summary;
  summary.scope = version.scope;
  summary.base = version.base;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    summary.replicas.push_back(ReplicaOf(publish.to[i], reports[i]));
    if (!reports[i].status.ok()) continue;
    summary.version = reports[i].version;
    summary.bytes = reports[i].bytes;
  }
  if (summary.version.digest.IsZero() && !reports.empty()) summary.version = reports[0].version;
  return summary;
}

}  // namespace

Outcome PublishFromDisk(Program& program, const DiskPublish& publish) {
  const Deadline deadline = Deadline::After(Clock::Real(), publish.deadline);
  const std::stop_token stop = program.interrupt.token();
  DiskVersion version{.path = publish.path,
                      .number = publish.version.value_or(0),
                      .run = publish.run,
                      .new_run = publish.new_run,
                      .ignore = publish.ignore,
                      .scope = publish.scope,
                      .base = std::nullopt};
  if (Outcome outcome = AskReplicas(publish, deadline, stop, version); !outcome.status.ok()) return outcome;
  std::vector<SendReport> reports(publish.to.size());
  {
    std::vector<Worker> workers;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      workers.emplace_back(fmt::format("load-{}", i), [&, i](std::stop_token) {
        reports[i] = LoadVersionFromDisk(publish.to[i], version, deadline, stop, publish.security);
      });
    }
  }
  const PublishReport report = Summary(publish, version, reports);
  if (program.out.json()) {
    program.out.PrintObject(PublishReportJson(report, kTransport));
  } else {
    program.out.PrintText(PublishReportText(report, program.out, kTransport));
  }
  return PublishOutcome(report);
}

}  // namespace bascule
