// One file a command: each registers its options and gives what runs when the command was chosen. main.cc wires them.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <functional>

#include "tools/interrupt.h"
#include "tools/outcome.h"
#include "tools/output.h"

namespace CLI {
class App;
}  // namespace CLI

namespace bascule {

// What every command is given. Borrowed.
struct Program {
  Output& out;
  Interrupt& interrupt;
};

struct Command {
  CLI::App* app = nullptr;  // owned by the parent
  std::function<Outcome(Program&)> run;
};

Command BenchCommand(CLI::App& parent);
Command DaemonCommand(CLI::App& parent);
Command DigestCommand(CLI::App& parent);
Command EngineCommand(CLI::App& parent);
Command GenerateCommand(CLI::App& parent);
Command InspectCommand(CLI::App& parent);
Command MapCommand(CLI::App& parent);
Command PlanCommand(CLI::App& parent);
Command PublishCommand(CLI::App& parent);
Command RollbackCommand(CLI::App& parent);
Command ShardCommand(CLI::App& parent);
Command StatusCommand(CLI::App& parent);
Command UnshardCommand(CLI::App& parent);
Command VerifyCommand(CLI::App& parent);
Command VersionsCommand(CLI::App& parent);
Command WatchCommand(CLI::App& parent);

}  // namespace bascule
