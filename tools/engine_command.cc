// bascule engine: serves rollouts from a checkpoint and takes new versions while it does.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "device/communicator.h"
#include "tools/command.h"
#include "tools/engine_membership.h"
#include "tools/engine_process.h"
#include "tools/kv_option.h"
#include "tools/options.h"
#include "tools/start_options.h"

namespace bascule {
namespace {

constexpr int kMaxThreads = 256;

struct EngineOptions {
  StartOptions start;
  EngineProcessOptions process;
  std::string flip = "shadow";
  std::string over_budget = "postpone";
  std::string daemon_check = "full";
  std::string numerics = "exact";
  std::string device = "cpu";
  std::string transport = "auto";
};

constexpr std::string_view kCuda = "cuda:";

// The ordinals of "cuda:0,1", none of "cpu"; no value for anything else.
std::optional<std::vector<int>> OrdinalsOf(std::string_view device) {
  std::vector<int> ordinals;
  if (device == "cpu") return ordinals;
  if (!device.starts_with(kCuda)) return std::nullopt;
  device.remove_prefix(kCuda.size());
  while (true) {
    int ordinal = 0;
    const auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), ordinal);
    if (error != std::errc() || ordinal < 0) return std::nullopt;
    ordinals.push_back(ordinal);
    device.remove_prefix(static_cast<std::size_t>(end - device.data()));
    if (device.empty()) return ordinals;
    if (device.front() != ',') return std::nullopt;
    device.remove_prefix(1);
  }
}

void SayReady(Output& out, const std::string& device, const WeightVersion& version, FirstSource source,
              const ReadSummary& read, double load_ms) {
  if (out.json()) {
    out.PrintObject(Json{{"event", "ready"},
                         {"version", version.number},
                         {"run", version.run},
                         {"digest", version.digest.ToHex()},
                         {"source", FirstSourceName(source)},
                         {"device", device},
                         {"load_ms", load_ms},
                         {"read",
                          {{"strategy", ReadStrategyName(read.strategy)},
                           {"logical_bytes", read.logical_bytes},
                           {"read_bytes", read.read_bytes},
                           {"calls", read.calls}}}});
  } else {
    const std::string how = source == FirstSource::kDisk
                                ? fmt::format("{:.0f} MB by --read {}", static_cast<double>(read.read_bytes) / 1e6,
                                              ReadStrategyName(read.strategy))
                                : fmt::format("from the {}", FirstSourceName(source));
    const std::string where = device == "cpu" ? "" : ", on " + device;
    out.PrintText(fmt::format("ready     version {} (digest {}) in {:.0f} ms, {}{}", version.ToString(),
                              version.digest.ToHex(), load_ms, how, where));
  }
}

MembershipOptions MembershipOf(const EngineOptions& options) {
  MembershipOptions membership = options.start.membership;
  membership.check_daemon = options.daemon_check == "full";
  if (!membership.from_daemon.empty()) {
    membership.from_daemon = std::filesystem::absolute(membership.from_daemon).string();
  }
  return membership;
}

// None: all that there are.
Result<std::optional<TransportKind>> TransportOf(const EngineOptions& options) {
  if (options.transport == "auto") return std::optional<TransportKind>();
  ASSIGN_OR_RETURN(const TransportKind kind, ParseTransport(options.transport));
  if ((kind == TransportKind::kCudaIpc || kind == TransportKind::kNccl) && options.device == "cpu") {
    return UsageError(fmt::format("--transport {} needs --device cuda:N: its frames lie where the engine's slots do",
                                  options.transport));
  }
  if (kind == TransportKind::kNccl) RETURN_IF_ERROR(LoadCommunicators().status());
  return std::optional(kind);
}

Outcome RunEngine(Program& program, const EngineOptions& options) {
  const StartOptions& start = options.start;
  ASSIGN_OR_RETURN(auto checkpoint, LogicalCheckpoint::Open(start.checkpoint, start.read));
  EngineProcessOptions process = options.process;
  RETURN_IF_ERROR(Apply(start, checkpoint, process));
  ASSIGN_OR_RETURN(process.transport, TransportOf(options));
  if (const std::vector<int> ordinals = OrdinalsOf(options.device).value_or(std::vector<int>()); !ordinals.empty()) {
    ASSIGN_OR_RETURN(process.decode_devices, DecodeDevices::Open(ordinals));
    process.devices = process.decode_devices.devices;
  }
  process.flip = options.flip == "in_place" ? FlipMode::kInPlace : FlipMode::kShadow;
  process.fast_numerics = options.numerics == "fast";
  process.stall_budget.refuse = options.over_budget == "refuse";
  // What a daemon lends needs no memory of this process; on a device it is copied.
  process.slot_memory.when_reserved =
      !start.membership.from_daemon.empty() && process.flip == FlipMode::kShadow && process.devices.empty();
  ASSIGN_OR_RETURN(const auto engine_process, EngineProcess::Start(process, checkpoint));
  ReceivingProcess* const engine = &engine_process->receiving();
  program.out.PrintListening(engine->address());
  Clock& clock = Clock::Real();
  const TimePoint began = clock.Now();
  const Deadline deadline = Deadline::After(clock, start.load_deadline);
  EngineMembership membership(MembershipOf(options), *engine, process.peers);
  const Status begun = membership.Begin(
      [&] {
        const auto loaded = engine->Load(checkpoint, start.run, start.version, deadline, program.interrupt.token());
        return loaded.status().WithContext(start.checkpoint);
      },
      deadline, program.interrupt.token());
  if (program.interrupt.requested()) return program.interrupt.StopStatusOfServer();
  if (!begun.ok()) return begun;
  SayReady(program.out, process.decode_devices.Name(), *engine->receiver().status().live, membership.first_source(),
           checkpoint.read_summary(), MsOf(clock.Now() - began));
  program.interrupt.Wait();
  return program.interrupt.StopStatusOfServer();
}

void AddEngineOptions(CLI::App& app, EngineOptions& options) {
  EngineProcessOptions& process = options.process;
  MembershipOptions& membership = options.start.membership;
  process.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
  AddServing(app, options.start, process);
  app.add_option("--flip", options.flip,
                 "how a version becomes live: shadow exchanges slots, in_place copies and keeps every address")
      ->capture_default_str()
      ->check(CLI::IsMember({"shadow", "in_place"}));
  AddDuration(app, "--stall-budget", process.stall_budget.limit, "longest time for which a flip may stop decoding")
      ->default_str("none");
  app.add_option("--over-budget", options.over_budget,
                 "a flip that would take longer: waits until nothing decodes, or is refused")
      ->capture_default_str()
      ->check(CLI::IsMember({"postpone", "refuse"}));
  app.add_option(
         "--staging-slowdown", process.staging_slowdown,
         "how many times as long decode steps may take while a version stages, more than 1; 0: staging never pauses")
      ->capture_default_str()
      ->check([](const std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && (value == 0 || value > 1);
        return good ? std::string() : "want 0, or more than 1";
      });
  app.add_option("--staging-cores", process.staging_cores, "that staging keeps to; default: any")
      ->delimiter(',')
      ->type_name("CORE,..");
  app.add_option("--decode-cores", process.decode_cores, "that decoding keeps to; default: any")
      ->delimiter(',')
      ->type_name("CORE,..");
  app.add_option("--numerics", options.numerics,
                 "exact: the same bits alone, in any batch and recomputed; fast: products of many rows by a library, "
                 "with activations rounded to bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"exact", "fast"}));
  app.add_option("--device", options.device,
                 "where weights lie and decoding computes: cpu, or cuda: and a GPU's number for each engine rank "
                 "(cuda:0,1 with --tp 2)")
      ->capture_default_str()
      ->type_name("cpu|cuda:N[,N..]")
      ->check([](const std::string& text) {
        return OrdinalsOf(text) ? std::string() : "'" + text + "' is neither cpu nor cuda:N[,N..]";
      });
  app.add_option(
         "--transport", options.transport,
         "how publishers may send: auto offers all there are, with cuda_ipc where ranks are on GPUs, and nccl where "
         "NCCL is there too")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "shm", "grpc", "cuda_ipc", "nccl"}));
  AddKvPolicy(app, process.kv_policy, "what becomes of a request that runs at a flip, unless it names a policy")
      ->default_str("recompute");
  app.add_option("--slots", process.slot_count, "versions in memory; 3 keep a way back while the next one stages")
      ->capture_default_str()
      ->check(CLI::Range(2, 3));
  app.add_flag("--full-tensors", process.full_tensors,
               "takes versions from one sender that has every tensor whole: trainers of several ranks gather");
  app.add_option("--threads", process.threads, "that compute, for all engine ranks together")
      ->capture_default_str()
      ->check(CLI::Range(1, kMaxThreads));
  app.add_option("--kv-pages", process.kv_pages, "of the key/value cache; 0 chooses by the model")
      ->capture_default_str()
      ->check(AtLeast(0));
  app.add_option("--max-running", process.max_running, "requests that decode at once")
      ->capture_default_str()
      ->check(AtLeast(1));
  app.add_option("--max-waiting", process.max_waiting, "requests that wait for their turn; further ones are refused")
      ->capture_default_str()
      ->check(AtLeast(1));
  auto* const from_daemon =
      app.add_option("--from-daemon", membership.from_daemon,
                     "map the first version, and those that follow, from the cache daemon that listens at this socket; "
                     "where there is no such file the checkpoint is loaded")
          ->type_name("PATH");
  app.add_option(
         "--daemon-check", options.daemon_check,
         "full: digest all that the daemon lends before it is live; recorded: believe what the daemon has proven")
      ->capture_default_str()
      ->check(CLI::IsMember({"full", "recorded"}))
      ->needs(from_daemon);
  app.add_flag("!--no-follow", membership.follow_daemon,
               "with --from-daemon: take the first version from there, and later ones from publishers only")
      ->needs(from_daemon);
  AddNumber(app, "--daemon-version", membership.daemon_version,
            "with --from-daemon: that version, and no later one; default: what is live there, now and later")
      ->needs(from_daemon);
  AddFirstVersion(app, options.start, process, "engine");
  app.get_option("--from-peer")->excludes(from_daemon);
}

}  // namespace

Command EngineCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "engine",
                                "Serves rollouts from a checkpoint or an artifact and takes new versions meanwhile.",
                                "bascule engine ./checkpoint --listen 127.0.0.1:7000");
  auto options = std::make_shared<EngineOptions>();
  AddEngineOptions(*app, *options);
  return {app, [options](Program& program) { return RunEngine(program, *options); }};
}

}  // namespace bascule
