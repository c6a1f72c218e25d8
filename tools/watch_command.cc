// bascule watch: the status as a stream, one line at every change; a live table on a terminal.
#include <nlohmann/json.hpp>

#include "tools/peer.h"
#include "tools/status_text.h"

namespace bascule {
namespace {

bool ShowChange(Output& out, const Json& status) {
  if (out.json()) return out.PrintObject(status);
  out.ClearScreen();
  return out.PrintText(StatusText(status, out) + (out.on_terminal() ? "" : "\n"));
}

Status WatchPeer(Program& program, VersionStatusClient& client) {
  RETURN_IF_ERROR(
      client.Watch(program.interrupt.token(), [&](const Json& status) { return ShowChange(program.out, status); }));
  return OkStatus();
}

}  // namespace

Command WatchCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "watch", "Shows the status at every change, until the peer ends or Ctrl-C.",
                                "bascule watch 127.0.0.1:7000 --json");
  auto options = std::make_shared<PeerOptions>();
  AddPeerOptions(*app, *options);
  return {app, [options](Program& program) {
            return AskPeer(*options, [&](VersionStatusClient& client, Deadline) { return WatchPeer(program, client); });
          }};
}

}  // namespace bascule
