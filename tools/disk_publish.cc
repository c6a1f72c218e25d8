#include "tools/disk_publish.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/worker.h"
#include "tools/grpc/version_load_client.h"
#include "tools/grpc/version_status_client.h"
#include "tools/publish_report.h"

namespace bascule {
namespace {

constexpr std::string_view kTransport = "disk";

// The highest number that the engine has committed in `run`, or, without one, in the run of its live version.
Result<std::uint64_t> HighestOf(const DiskPublish& publish, const std::string& address, Deadline deadline,
                                const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto client, VersionStatusClient::Connect(address, deadline, publish.security));
  ASSIGN_OR_RETURN(const Json status, client->GetStatus(deadline, stop));
  if (!status.contains("live") || status["live"].is_null()) {
    return Status::FailedPrecondition("nothing_live", "no version is live yet; give --version and --new-run --run");
  }
  const std::string of_run = publish.run.empty() ? status["live"]["run"].get<std::string>() : publish.run;
  ASSIGN_OR_RETURN(const std::vector<Json> rows, client->ListVersions(deadline, stop));
  std::uint64_t highest = 0;
  for (const Json& row : rows) {
    if (row["outcome"] != "committed" || row["run"] != of_run) continue;
    highest = std::max(highest, row["version"].get<std::uint64_t>());
  }
  return highest;
}

// Asks every replica; the first that cannot be asked is `peer` of the failure.
Outcome NextNumber(const DiskPublish& publish, Deadline deadline, const std::stop_token& stop, std::uint64_t& number) {
  for (const std::string& address : publish.to) {
    const auto highest = HighestOf(publish, address, deadline, stop);
    if (!highest.ok()) return {highest.status(), address, "connect"};
    number = std::max(number, *highest + 1);
  }
  return {};
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

PublishReport Summary(const DiskPublish& publish, const std::vector<SendReport>& reports) {
  PublishReport summary;
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
                      .ignore = publish.ignore};
  if (!publish.version) {
    if (Outcome outcome = NextNumber(publish, deadline, stop, version.number); !outcome.status.ok()) return outcome;
  }
  std::vector<SendReport> reports(publish.to.size());
  {
    std::vector<Worker> workers;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      workers.emplace_back(fmt::format("load-{}", i), [&, i](std::stop_token) {
        reports[i] = LoadVersionFromDisk(publish.to[i], version, deadline, stop, publish.security);
      });
    }
  }
  const PublishReport report = Summary(publish, reports);
  if (program.out.json()) {
    program.out.PrintObject(PublishReportJson(report, kTransport));
  } else {
    program.out.PrintText(PublishReportText(report, program.out, kTransport));
  }
  return PublishOutcome(report);
}

}  // namespace bascule
