// bascule status: which version is where, now.
#include <nlohmann/json.hpp>

#include "tools/peer.h"
#include "tools/status_text.h"

namespace bascule {
namespace {

struct StatusOptions {
  PeerOptions peer;
  bool details = false;
};

Status ShowStatus(Program& program, const StatusOptions& options, VersionStatusClient& client, Deadline deadline) {
  ASSIGN_OR_RETURN(const Json status, client.GetStatus(deadline, program.interrupt.token(), options.details));
  if (program.out.json()) {
    program.out.PrintObject(status);
  } else {
    program.out.PrintText(StatusText(status, program.out));
  }
  return OkStatus();
}

}  // namespace

Command StatusCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "status",
                                "Shows which version is live on an engine, a cache daemon or a publisher, every rank.",
                                "bascule status 127.0.0.1:7000");
  auto options = std::make_shared<StatusOptions>();
  AddPeerOptions(*app, options->peer);
  app->add_flag("--details", options->details,
                "of an engine: how often stalls and gaps between tokens across flips were how long");
  return {app, [options](Program& program) {
            return AskPeer(options->peer, [&](VersionStatusClient& client, Deadline deadline) {
              return ShowStatus(program, *options, client, deadline);
            });
          }};
}

}  // namespace bascule
