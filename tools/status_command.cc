// bascule status: which version is where, now.
#include <nlohmann/json.hpp>

#include "tools/peer.h"
#include "tools/status_text.h"

namespace bascule {
namespace {

Status ShowStatus(Program& program, VersionStatusClient& client, Deadline deadline) {
  ASSIGN_OR_RETURN(const Json status, client.GetStatus(deadline, program.interrupt.token()));
  if (program.out.json()) {
    program.out.PrintObject(status);
  } else {
    program.out.PrintText(StatusText(status, program.out));
  }
  return OkStatus();
}

}  // namespace

Command StatusCommand(CLI::App& parent) {
  CLI::App* app =
      AddSubcommand(parent, "status", "Shows which version is live on an engine or a publisher, every rank.",
                    "bascule status 127.0.0.1:7000");
  auto options = std::make_shared<PeerOptions>();
  AddPeerOptions(*app, *options);
  return {app, [options](Program& program) {
            return AskPeer(*options, [&](VersionStatusClient& client, Deadline deadline) {
              return ShowStatus(program, client, deadline);
            });
          }};
}

}  // namespace bascule
