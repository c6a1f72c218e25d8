// bascule versions: the history of an engine or a publisher, oldest first.
#include <nlohmann/json.hpp>

#include "tools/peer.h"
#include "tools/status_text.h"

namespace bascule {
namespace {

Status ShowVersions(Program& program, VersionStatusClient& client, Deadline deadline) {
  ASSIGN_OR_RETURN(const std::vector<Json> rows, client.ListVersions(deadline, program.interrupt.token()));
  if (!program.out.json()) {
    program.out.PrintText(HistoryText(rows));
    return OkStatus();
  }
  for (const Json& row : rows) program.out.PrintObject(row);
  return OkStatus();
}

}  // namespace

Command VersionsCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "versions", "Lists the versions that came and went, oldest first.",
                                "bascule versions 127.0.0.1:7000");
  auto options = std::make_shared<PeerOptions>();
  AddPeerOptions(*app, *options);
  return {app, [options](Program& program) {
            return AskPeer(*options, [&](VersionStatusClient& client, Deadline deadline) {
              return ShowVersions(program, client, deadline);
            });
          }};
}

}  // namespace bascule
