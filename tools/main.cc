// The `bascule` program: reads the command line and runs one command.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/descriptors.h"
#include "base/log.h"
#include "tools/command.h"
#include "tools/config_file.h"
#include "tools/last_words.h"

namespace bascule {
namespace {

// With fewer, a command would fail half-way, and each of its parts in another way.
constexpr int kDescriptorsWanted = 32;

struct CommonOptions {
  bool json = false;
  bool log_json = false;
  std::string log_level = "warn";
};

void AddCommonOptions(CLI::App& app, CommonOptions& options) {
  app.add_flag("--json", options.json, "print JSON on stdout and nothing else there");
  app.add_option("--log-level", options.log_level, "of the log on stderr: debug, info, warn, error, off")
      ->capture_default_str()
      ->check([](const std::string& text) { return ParseLogLevel(text).status().message(); });
  app.add_flag("--log-json", options.log_json, "log one JSON object a line");
  app.set_config("--config", "", "options as TOML; keys in a section [COMMAND] belong to that command");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.config_formatter(std::make_shared<CommandConfig>(app));
  app.fallthrough();
}

std::vector<Command> AddCommands(CLI::App& app) {
  std::vector<Command> commands = {EngineCommand(app),  PublishCommand(app),  GenerateCommand(app), StatusCommand(app),
                                   WatchCommand(app),   VersionsCommand(app), RollbackCommand(app), DigestCommand(app),
                                   VerifyCommand(app),  InspectCommand(app),  MapCommand(app),      ShardCommand(app),
                                   UnshardCommand(app), PlanCommand(app),     DaemonCommand(app)};
#ifdef BASCULE_BENCHMARKS
  commands.push_back(BenchCommand(app));
#endif
  return commands;
}

// What is wrong with the command line; CLI11's own words where they say it.
std::string UsageComplaint(const CLI::App& app, const CLI::ParseError& error) {
  const bool has_command = !app.get_subcommands().empty();
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const auto option =
      std::find_if(unknown.begin(), unknown.end(), [](const std::string& word) { return word.starts_with('-'); });
  if (option != unknown.end()) return fmt::format("no option '{}'", *option);
  if (!unknown.empty()) {
    return has_command ? fmt::format("'{}' is one argument too many", unknown[0])
                       : fmt::format("no command '{}'", unknown[0]);
  }
  const bool lacks_command = !has_command && error.get_name() == "RequiredError";
  return lacks_command ? "a command is required" : error.what();
}

// The error says also where to read how it is right.
Status UsageErrorWithHelp(const CLI::App& app, const std::string& complaint) {
  const auto chosen = app.get_subcommands();
  const std::string help = chosen.empty() ? "bascule --help" : fmt::format("bascule {} --help", chosen[0]->get_name());
  return UsageError(fmt::format("{}; see {}", complaint, help));
}

// What Ctrl-C has cancelled was interrupted, and nothing else.
Outcome Explained(Outcome outcome, const CLI::App& app, const Interrupt& interrupt) {
  if (outcome.status.code() == StatusCode::kCancelled && interrupt.requested()) outcome.status = InterruptedError();
  if (ExitCodeOf(outcome.status) == kExitUsage) outcome.status = UsageErrorWithHelp(app, outcome.status.message());
  return outcome;
}

// What stdout did not take has not been said. But a reader that has gone, as `head` does, had what it wanted.
Status OutputStatus() {
  if (std::ferror(stdout) == 0) return OkStatus();
  pollfd out{STDOUT_FILENO, 0, 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return OkStatus();
  return Status::Internal("output_failed", "stdout could not be written");
}

int Finish(Output& out, Outcome outcome) {
  if (outcome.status.ok()) outcome = OutputStatus();
  if (!outcome.status.ok()) out.PrintError(outcome);
  return ExitCodeOf(outcome.status);
}

// Streams of a device that share one of its queues may wait for each other, and NCCL's kernels wait for peers: as many
// queues as CUDA has, in place of 8. Before there are threads, and before CUDA looks.
void AskForDeviceQueues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

int Main(int argc, char** argv) {
  AskForDeviceQueues();
  // Of the command line as it stands: also before it is understood.
  const bool wants_json = std::any_of(argv, argv + argc, [](std::string_view word) { return word == "--json"; });
  SpeakLastWords(wants_json);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is a failed write, not the end of a server
  Interrupt interrupt;
  Output out;
  CLI::App app("Carries policy weights from trainers into inference engines while they decode.", "bascule");
  app.footer(
      "Examples:\n  bascule engine ./checkpoint --listen 127.0.0.1:7000\n"
      "  bascule publish ./next-checkpoint --to 127.0.0.1:7000");
  app.require_subcommand(1);
  CommonOptions options;
  AddCommonOptions(app, options);
  const std::vector<Command> commands = AddCommands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // The flag may come after what is wrong.
    out.set_json(wants_json);
    return Finish(out, UsageErrorWithHelp(app, UsageComplaint(app, error)));
  }
  out.set_json(options.json);
  RaiseDescriptorLimit();
  SetLogLevel(*ParseLogLevel(options.log_level));
  SetLogJson(options.log_json);
  const auto chosen = std::find_if(commands.begin(), commands.end(), [](const Command& c) { return c.app->parsed(); });
  Program program{out, interrupt};
  if (const Status room = CheckDescriptors(kDescriptorsWanted); !room.ok()) return Finish(out, room);
  return Finish(out, Explained(chosen->run(program), app, interrupt));
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) { return bascule::Main(argc, argv); }
