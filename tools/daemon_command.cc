// bascule daemon: holds verified versions in memory that engines of this host map.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine_side/cache_daemon/cache_daemon.h"
#include "engine_side/cache_daemon/frozen_memory.h"
#include "engine_side/engine_hooks.h"
#include "tools/command.h"
#include "tools/engine_membership.h"
#include "tools/model_origin.h"
#include "tools/options.h"
#include "tools/receiving_process.h"
#include "tools/start_options.h"

namespace bascule {
namespace {

constexpr int kMostVersions = 64;

struct DaemonOptions {
  StartOptions start;
  ReceivingOptions process;
  std::string socket;
  int keep = 2;
  bool empty = false;
};

Result<ReceivingOptions> ProcessOf(const DaemonOptions& options, const LogicalCheckpoint& checkpoint) {
  ReceivingOptions process = options.process;
  RETURN_IF_ERROR(Apply(options.start, checkpoint, process));
  process.slot_memory = {.from = &FreezableMemory(), .when_reserved = true};
  process.slot_count = options.keep > 1 ? 3 : 2;  // one fills, one is live, one is the way back
  return process;
}

// What all versions of this model have in common.
Result<ArtifactManifest> ModelOf(const LogicalCheckpoint& checkpoint, const ModelCut& cut) {
  ArtifactManifest model;
  model.fingerprint = cut.fingerprint;
  model.config_json = checkpoint.config_json();
  model.families = cut.layout.families;
  if (checkpoint.artifact() != nullptr) {
    model.origin = checkpoint.artifact()->manifest().origin;
  } else {
    ASSIGN_OR_RETURN(model.origin, OriginOf(checkpoint.path(), checkpoint.config_json()));
  }
  return model;
}

void SayReady(Output& out, const WeightVersion& version, FirstSource source) {
  if (out.json()) {
    out.PrintObject(Json{{"event", "ready"},
                         {"version", version.number},
                         {"run", version.run},
                         {"digest", version.digest.ToHex()},
                         {"source", FirstSourceName(source)}});
  } else {
    out.PrintText(fmt::format("ready     version {} (digest {}) from {}", version.ToString(), version.digest.ToHex(),
                              FirstSourceName(source)));
  }
}

void SaySocket(Output& out, const std::string& path, InstanceId instance) {
  if (out.json()) {
    out.PrintObject(Json{{"event", "socket"}, {"path", path}, {"instance", instance.ToString()}});
  } else {
    out.PrintText(fmt::format("socket    {} (daemon {}): empty until it is ready", path, instance.ToString()));
  }
}

// With --empty the first version is whatever a publisher brings.
Status AwaitFirst(WeightReceiver& receiver, const std::stop_token& stop) {
  std::uint64_t seen = 0;
  while (!receiver.status().Ready() && !stop.stop_requested()) {
    const auto mark = receiver.WaitForChange(seen, Deadline::After(Clock::Real(), std::chrono::milliseconds(200)));
    if (mark.ok()) seen = *mark;
  }
  return OkStatus();
}

Outcome RunDaemon(Program& program, const DaemonOptions& options) {
  const StartOptions& start = options.start;
  ASSIGN_OR_RETURN(auto checkpoint, LogicalCheckpoint::Open(start.checkpoint, start.read));
  ASSIGN_OR_RETURN(const ReceivingOptions process, ProcessOf(options, checkpoint));
  ASSIGN_OR_RETURN(ModelCut cut, CutOf(checkpoint, process.parallel, process.dtype));
  CacheDaemonOptions cache{.socket = std::filesystem::absolute(options.socket).string(), .keep = options.keep};
  ASSIGN_OR_RETURN(cache.model, ModelOf(checkpoint, cut));
  IdleHooks hooks;
  ASSIGN_OR_RETURN(const auto receiving,
                   ReceivingProcess::Create(process, std::move(cut), checkpoint, hooks, /*throttle=*/nullptr));
  // Shared with the status service, which asks it until the server has stopped.
  ASSIGN_OR_RETURN(const std::shared_ptr<CacheDaemon> daemon, CacheDaemon::Create(cache, receiving->receiver()));
  SaySocket(program.out, cache.socket, daemon->status().instance);
  RETURN_IF_ERROR(receiving->Serve([daemon] { return ServingStatus{.cache = daemon->status()}; }));
  program.out.PrintListening(receiving->address());
  const Deadline deadline = Deadline::After(Clock::Real(), start.load_deadline);
  EngineMembership membership(start.membership, *receiving, process.peers);
  const std::stop_token stop = program.interrupt.token();
  const Status begun = membership.Begin(
      [&] {
        if (options.empty) return AwaitFirst(receiving->receiver(), stop);
        const auto loaded = receiving->Load(checkpoint, start.run, start.version, deadline, stop);
        return loaded.status().WithContext(start.checkpoint);
      },
      deadline, stop);
  if (program.interrupt.requested()) return program.interrupt.StopStatusOfServer();
  RETURN_IF_ERROR(begun);
  const FirstSource source = options.empty ? FirstSource::kFleet : membership.first_source();
  SayReady(program.out, *receiving->receiver().status().live, source);
  program.interrupt.Wait();
  return program.interrupt.StopStatusOfServer();
}

void AddDaemonOptions(CLI::App& app, DaemonOptions& options) {
  AddServing(app, options.start, options.process);
  app.add_option("--socket", options.socket,
                 "where engines of this host come (engine --from-daemon); others may not write in its directory")
      ->required()
      ->type_name("PATH");
  app.add_option("--keep", options.keep,
                 "versions held: the live one and those before it. Memory is for one more, which is being received")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostVersions));
  app.add_flag("--empty", options.empty, "load nothing: the first version is the one that a publisher brings");
  AddFirstVersion(app, options.start, options.process, "daemon");
}

}  // namespace

Command DaemonCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "daemon",
                                "Holds verified versions in memory of this host, which engines map: they start at "
                                "once, and share it.",
                                "bascule daemon ./checkpoint --socket /run/bascule/cache.sock");
  auto options = std::make_shared<DaemonOptions>();
  AddDaemonOptions(*app, *options);
  return {app, [options](Program& program) { return RunDaemon(program, *options); }};
}

}  // namespace bascule
