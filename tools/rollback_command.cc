// bascule rollback: back to the kept version, without a transfer.
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/peer.h"

namespace bascule {
namespace {

struct RollbackOptions {
  PeerOptions peer;
  std::optional<std::uint64_t> to;
};

// Of a fleet: a replica that has not gone back is out of rotation now.
Status FirstFailure(const Json& report) {
  if (!report.contains("replicas")) return OkStatus();
  for (const Json& replica : report["replicas"]) {
    if (replica["error"].is_null()) continue;
    return Status::Unavailable(replica["error"]["reason"].get<std::string>(),
                               replica["error"]["message"].get<std::string>());
  }
  return OkStatus();
}

Status RollBack(Program& program, const RollbackOptions& options, VersionStatusClient& client, Deadline deadline) {
  ASSIGN_OR_RETURN(const Json report, client.Rollback(options.to, deadline, program.interrupt.token()));
  if (program.out.json()) {
    program.out.PrintObject(report);
  } else {
    program.out.PrintText(fmt::format("live is version {} again (digest {}, decode stood still for {} µs)",
                                      report["version"].dump(), report["digest"].get<std::string>(),
                                      report["flip_stall_us"].dump()));
  }
  return FirstFailure(report);
}

}  // namespace

Command RollbackCommand(CLI::App& parent) {
  CLI::App* app =
      AddSubcommand(parent, "rollback", "Flips an engine, or every replica of a publisher, back to the kept version.",
                    "bascule rollback 127.0.0.1:7000 --to 6");
  auto options = std::make_shared<RollbackOptions>();
  AddPeerOptions(*app, options->peer);
  AddNumber(*app, "--to", options->to, "fail unless this is the kept version's number");
  return {app, [options](Program& program) {
            return AskPeer(options->peer, [&](VersionStatusClient& client, Deadline deadline) {
              return RollBack(program, *options, client, deadline);
            });
          }};
}

}  // namespace bascule
