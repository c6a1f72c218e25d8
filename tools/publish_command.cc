// bascule publish: acts as a trainer whose weights are a checkpoint.
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/grpc/grpc_server.h"
#include "bridge/group/merge_layouts.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/nccl/dialer.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "model/engine_layout.h"
#include "tools/artifact_check.h"
#include "tools/command.h"
#include "tools/device_option.h"
#include "tools/disk_publish.h"
#include "tools/logical_checkpoint.h"
#include "tools/options.h"
#include "tools/policy_options.h"
#include "tools/publish_progress.h"
#include "tools/publish_report.h"
#include "tools/rank_processes.h"
#include "tools/rank_weights.h"
#include "tools/read_option.h"
#include "tools/security_options.h"
#include "trainer_side/device_copy.h"
#include "trainer_side/group_environment.h"
#include "trainer_side/grpc/fleet_service.h"
#include "trainer_side/grpc/version_status_service.h"
#include "trainer_side/layouts/layout_spec.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);  // between looks at the progress
constexpr Duration kCancelTime = std::chrono::seconds(5);   // for replicas to hear that a publish is cancelled
constexpr Duration kEndTime = std::chrono::seconds(5);      // for the other ranks to end by themselves
constexpr Duration kTellTime = std::chrono::seconds(2);     // for the group to notice by itself that a rank is gone
constexpr const char* kAnyPort = "127.0.0.1:0";
constexpr int kMaxTrainerRanks = 256;  // processes on one machine
// What --from-disk has no use for: nobody sends, and nobody decides for all.
constexpr std::array kOfSenders = {"--policy",     "--journal", "--sentinels",     "--sentinel-bound",
                                   "--max-weight", "--listen",  "--min-replicas",  "--transport",
                                   "--max-rate",   "--gather",  "--trainer-ranks", "--trainer-layout"};

struct PublishOptions {
  std::string checkpoint;
  ReadOptions read;
  std::vector<std::string> to;
  std::optional<std::uint64_t> version;
  std::string run;
  bool new_run = false;
  PolicyOptions policy;
  std::string transport = "auto";
  std::string device = "cuda:0";
  std::vector<std::string> ignore;
  std::vector<std::string> scope;
  Duration deadline = std::chrono::minutes(5);
  std::string listen;
  bool serve = false;
  std::int64_t max_rate = 0;
  bool from_disk = false;
  std::uint64_t trainer_ranks = 1;
  std::string trainer_layout = "fsdp";
  bool gather = false;
  bool as_trainer_rank = false;
  SecurityOptions security;
};

// What this process sends: the checkpoint, or a trainer rank's part of it, and where it stands among the ranks.
struct Share {
  TrainerGroup group;
  std::unique_ptr<ShmListener> slices;   // of rank 0 of a group: where the others bring theirs when it gathers
  std::unique_ptr<RankWeights> weights;  // null: the checkpoint's own memory
};

// The ways a publisher can reach its replicas, and the ranks of a group each other.
struct Dialers {
  GrpcControlDialer control;
  GrpcControlHost host;
  ShmDialer shm;
  GrpcDialer grpc;
  std::shared_ptr<WeightDevice> device;     // null: weights stay in host memory; shared with the tensors that lie there
  std::unique_ptr<CudaIpcDialer> cuda_ipc;  // frames on that device
  std::unique_ptr<NcclDialer> nccl;         // likewise; null unless asked for

  // A rank calls its leader, which is a process of this host, and the replicas for routes.
  Dialers(const ClientSecurity& security, ServerSecurity of_group, bool as_trainer_rank)
      : control(as_trainer_rank ? ClientSecurity{.token = security.token} : security),
        host(std::move(of_group)),
        grpc(security) {}

  // as OpenDevice, LoadDeviceKernels and LoadCommunicators
  Status UseDevice(const std::string& name, bool with_nccl) {
    ASSIGN_OR_RETURN(Device* const opened, OpenDevice(name));
    ASSIGN_OR_RETURN(const DeviceKernels* const kernels, LoadDeviceKernels());
    device = std::make_shared<WeightDevice>(*opened, *kernels);
    cuda_ipc = std::make_unique<CudaIpcDialer>(*opened);
    if (!with_nccl) return OkStatus();
    ASSIGN_OR_RETURN(Communicators* const communicators, LoadCommunicators());
    nccl = std::make_unique<NcclDialer>(*opened, *communicators, grpc);
    return OkStatus();
  }

  // Rank 0 chooses for all; the others may reach it in another way than the replicas.
  std::vector<TransportDialer*> For(const std::string& transport, bool as_trainer_rank) {
    // Where NCCL cannot go, or has failed, the host's memory can.
    if (nccl != nullptr && as_trainer_rank) return {nccl.get(), &shm, &grpc};
    if (nccl != nullptr) return {nccl.get(), &grpc};
    if (as_trainer_rank && cuda_ipc != nullptr) return {cuda_ipc.get(), &shm, &grpc};
    if (as_trainer_rank || transport == "auto") return {&shm, &grpc};
    if (transport == "shm") return {&shm};
    if (transport == "grpc") return {&grpc};
    return {cuda_ipc.get()};
  }
  // For when that has failed: GPUs that cannot reach each other's memory, say.
  std::vector<TransportDialer*> FallbacksFor(const std::string& transport) {
    if (transport == "cuda_ipc") return {&grpc};
    return {};
  }
};

Result<WeightPublisherOptions> PublisherOptionsOf(const PublishOptions& options, const LogicalCheckpoint& checkpoint,
                                                  Dialers& dialers) {
  WeightPublisherOptions publisher;
  if (checkpoint.config().ok()) {
    ASSIGN_OR_RETURN(publisher.families, QuantizationFamilies(*checkpoint.config()));
  }
  publisher.replicas = options.to;
  publisher.control = &dialers.control;
  publisher.transports = dialers.For(options.transport, options.as_trainer_rank);
  publisher.fallbacks = dialers.FallbacksFor(options.transport);
  publisher.gather = options.gather;
  publisher.run = options.run;
  publisher.new_run = options.new_run;
  publisher.model = checkpoint.model();
  publisher.ignore = options.ignore;
  // Of all ranks together.
  publisher.max_bytes_per_second =
      options.max_rate == 0
          ? 0
          : std::max<std::int64_t>(1, options.max_rate / static_cast<std::int64_t>(options.trainer_ranks));
  publisher.deadline = options.deadline;
  publisher.catch_up = options.serve;
  if (options.serve) publisher.snapshot = Snapshot::kTensorsStay;
  return publisher;
}

// Ranks of one host join with the token that their publisher has, if it has one.
Result<ServerSecurity> GroupSecurityOf(const ClientSecurity& security) {
  ServerSecurity of_group;
  if (security.token.empty()) return of_group;
  ASSIGN_OR_RETURN(TokenTable tokens, TokenTable::Parse(security.token + " publish"));
  of_group.tokens = std::make_shared<const TokenTable>(std::move(tokens));
  return of_group;
}

Result<Share> ShareOf(const PublishOptions& options, const LogicalCheckpoint& checkpoint, ControlHost& host) {
  Share share;
  if (options.trainer_ranks == 1) return share;
  if (options.as_trainer_rank) {
    ASSIGN_OR_RETURN(share.group, TrainerGroupFrom(ProcessEnvironment()));
  } else {
    share.group = {.rank = 0,
                   .world_size = static_cast<int>(options.trainer_ranks),
                   .leader = kAnyPort,
                   .name = InstanceId::Mint().ToString()};
    ASSIGN_OR_RETURN(share.slices, ShmListener::Create(
                                       fmt::format("{}/trainer-{}.sock", DefaultRuntimeDirectory(), share.group.name)));
    share.group.listeners = {share.slices.get()};
  }
  share.group.host = &host;
  const ModelConfig* config = checkpoint.config().ok() ? &*checkpoint.config() : nullptr;
  ASSIGN_OR_RETURN(const Layout layout,
                   MakeTrainerLayout(options.trainer_layout, share.group.world_size, checkpoint.tensors(), config));
  ASSIGN_OR_RETURN(share.weights, RankWeights::Read(checkpoint.source(), PartOf(layout, share.group.rank)));
  return share;
}

// The publish, and the processes that take part in it.
struct Publishing {
  WeightPublisher& publisher;
  PublishHandle& handle;
  const RankProcesses* ranks = nullptr;  // null: this process alone
  Status lost;                           // of a rank whose process ended early
};

// A rank that ends before it has joined is nobody's loss but ours to notice.
void CancelWithoutItsRanks(Publishing& publishing, std::optional<Deadline>& patience) {
  if (publishing.ranks == nullptr) return;
  publishing.lost = publishing.ranks->Lost();
  if (publishing.lost.ok()) return;
  if (!patience) patience = Deadline::After(Clock::Real(), kTellTime);
  if (patience->Passed(Clock::Real())) publishing.publisher.Cancel();
}

// Waits for the end of the publish; Ctrl-C cancels it, and its replicas still get to hear that.
Result<PublishReport> WaitForReport(Program& program, const PublishOptions& options, Publishing& publishing) {
  PublishProgress progress(options.to.empty() ? "" : options.to.front(),
                           !program.out.json() && !options.as_trainer_rank);
  Clock& clock = Clock::Real();
  std::optional<Deadline> patience;
  const std::stop_callback cancel(program.interrupt.token(), [&] { publishing.publisher.Cancel(); });
  while (!program.interrupt.requested()) {
    auto report = publishing.handle.WaitCommitted(Deadline::After(clock, kLook));
    if (report.ok()) return report;
    progress.Update();
    CancelWithoutItsRanks(publishing, patience);
  }
  return publishing.handle.WaitCommitted(Deadline::After(clock, kCancelTime));
}

// What the leader has to say of its publish.
Outcome Tell(Program& program, const Result<PublishReport>& report, const Status& lost) {
  if (!report.ok()) return program.interrupt.requested() ? InterruptedError() : report.status();
  if (program.out.json()) {
    program.out.PrintObject(PublishReportJson(*report));
  } else {
    program.out.PrintText(PublishReportText(*report, program.out));
  }
  const Outcome outcome = PublishOutcome(*report);
  if (outcome.status.ok()) return outcome;
  if (program.interrupt.requested()) return InterruptedError();
  return outcome.status.reason() == "cancelled" && !lost.ok() ? Outcome(lost) : outcome;
}

// What the leader says of the publish is the leader's to tell. A rank that heard nothing of it has failed by itself.
Outcome TellAsMember(const Result<PublishReport>& report, const std::string& leader) {
  if (!report.ok()) return report.status();
  const bool heard = report->replicas.size() != 1 || report->replicas.front().address != leader;
  return heard ? Outcome() : Outcome(report->replicas.front().status);
}

// With --serve its part is asked for again; it stays for as long as the leader's process does.
Outcome EndAsMember(Program& program, const PublishOptions& options, const Result<PublishReport>& report,
                    const std::string& leader) {
  Outcome outcome = TellAsMember(report, leader);
  if (options.serve && outcome.status.ok()) program.interrupt.Wait();
  return outcome;
}

// Stays as the source of whoever joins late or comes back. A publish that nobody has committed leaves nothing to serve.
Outcome Serve(Program& program, const WeightPublisher& publisher, PublisherVersionStatusService& status,
              const Result<PublishReport>& report) {
  const Outcome outcome = Tell(program, report, OkStatus());
  const std::optional<WeightVersion> committed = publisher.status().committed;
  if (!report.ok() || !committed || program.interrupt.requested()) {
    status.Stop();
    return outcome;
  }
  if (!outcome.status.ok()) program.out.PrintError(outcome);
  if (program.out.json()) {
    program.out.PrintObject(Json{{"event", "ready"}, {"version", committed->number}, {"run", committed->run}});
  } else {
    program.out.PrintText(fmt::format("serving   version {} to whoever joins", committed->ToString()));
  }
  program.interrupt.Wait();
  status.Stop();
  return program.interrupt.StopStatusOfServer();
}

Outcome PublishAsTrainer(Program& program, const PublishOptions& options, const ClientSecurity& security) {
  ASSIGN_OR_RETURN(const ServerSecurity served, ServerSecurityOf(options.security));
  ASSIGN_OR_RETURN(ServerSecurity of_group, GroupSecurityOf(security));
  Dialers dialers(security, std::move(of_group), options.as_trainer_rank);
  const bool with_nccl = options.transport == "nccl";
  if (with_nccl || options.transport == "cuda_ipc") {
    RETURN_IF_ERROR(dialers.UseDevice(options.device, with_nccl));
  }
  ASSIGN_OR_RETURN(const auto checkpoint, LogicalCheckpoint::Open(options.checkpoint, options.read));
  if (checkpoint.artifact() != nullptr) {
    ASSIGN_OR_RETURN(const ArtifactCheck check, CheckArtifact(*checkpoint.artifact()));
    RETURN_IF_ERROR(check.ToStatus(checkpoint.path()));
  }
  ASSIGN_OR_RETURN(const Share share, ShareOf(options, checkpoint, dialers.host));
  const WeightSource* held = share.weights.get();
  ASSIGN_OR_RETURN(TensorSource source, TensorSourceOf(held == nullptr ? checkpoint.source() : *held));
  if (dialers.device != nullptr) {
    const Deadline deadline = Deadline::After(Clock::Real(), options.deadline);
    ASSIGN_OR_RETURN(source, CopyToDevice(source, dialers.device, deadline));
  }
  ASSIGN_OR_RETURN(WeightPublisherOptions publisher_options, PublisherOptionsOf(options, checkpoint, dialers));
  publisher_options.group = share.group;
  std::unique_ptr<CommitJournal> journal;
  RETURN_IF_ERROR(ApplyPolicy(options.policy, /*leads=*/share.group.rank == 0, security, journal, publisher_options));
  ASSIGN_OR_RETURN(const auto publisher, WeightPublisher::Create(std::move(publisher_options), std::move(source)));
  std::unique_ptr<RankProcesses> ranks;
  if (options.trainer_ranks > 1 && !options.as_trainer_rank) {
    TrainerGroup group = share.group;
    group.leader = publisher->group_address();
    ASSIGN_OR_RETURN(ranks, RankProcesses::Start(group));
  }
  PublisherVersionStatusService status(*publisher);
  FleetService fleet(*publisher);
  std::unique_ptr<GrpcServer> server;
  if (!options.listen.empty() && !options.as_trainer_rank) {
    ASSIGN_OR_RETURN(server, GrpcServer::Start(options.listen, {&status.service(), &fleet.service()}, served));
    server->SetServing(true);
    program.out.PrintListening(server->address());
  }
  std::optional<std::uint64_t> number = options.version;
  ASSIGN_OR_RETURN(const auto handle,
                   publisher->Publish({.number = number, .labels = {}, .take_over = false, .scope = options.scope}));
  Publishing publishing{.publisher = *publisher, .handle = *handle, .ranks = ranks.get(), .lost = {}};
  const auto report = WaitForReport(program, options, publishing);
  if (options.as_trainer_rank) return EndAsMember(program, options, report, share.group.leader);
  if (options.serve) return Serve(program, *publisher, status, report);
  status.Stop();
  if (ranks != nullptr) ranks->AwaitEnd(Deadline::After(Clock::Real(), kEndTime));
  return Tell(program, report, publishing.lost);
}

Outcome RunPublish(Program& program, const PublishOptions& options) {
  if (options.to.empty() && !options.serve) return UsageError("--to is required");
  if (options.to.empty() && options.run.empty()) return UsageError("--serve without --to needs --run");
  if (options.to.empty() && !options.scope.empty())
    return UsageError("--scope needs --to: there is nothing to build on");
  ASSIGN_OR_RETURN(const ClientSecurity security, ClientSecurityOf(options.security));
  if (!options.from_disk) return PublishAsTrainer(program, options, security);
  return PublishFromDisk(program, {.path = options.checkpoint,
                                   .to = options.to,
                                   .version = options.version,
                                   .run = options.run,
                                   .new_run = options.new_run,
                                   .ignore = options.ignore,
                                   .scope = options.scope,
                                   .deadline = options.deadline,
                                   .security = security});
}

void AddPublishOptions(CLI::App& app, PublishOptions& options) {
  app.add_option("checkpoint", options.checkpoint, "a checkpoint, a .safetensors file or an artifact")->required();
  AddAddresses(app, "--to", options.to, "the replicas; with --serve others may join");
  AddNumber(app, "--version", options.version, "its number; default: the highest seen + 1");
  CLI::Option* run = app.add_option("--run", options.run, "default: the run of the engine's live version");
  app.add_flag("--new-run", options.new_run, "the run starts here, at any number; one that is live goes on")
      ->needs(run);
  AddPolicyOptions(app, options.policy);
  CLI::Option* transport =
      app.add_option(
             "--transport", options.transport,
             "auto: shm on the same host, else grpc; cuda_ipc: the weights go to a GPU first, and from there to "
             "engines that have slots on the same one, and over grpc where that fails; nccl: likewise, to engines on "
             "other GPUs, here or on other hosts, and over grpc where NCCL cannot go or fails")
          ->capture_default_str()
          ->check(CLI::IsMember({"auto", "shm", "grpc", "cuda_ipc", "nccl"}));
  AddDevice(app, options.device, "of --transport cuda_ipc and nccl")->capture_default_str()->needs(transport);
  app.add_option("--ignore", options.ignore, "tensors that the engine need not know; '*' stands for any text")
      ->type_name("PATTERN");
  app.add_option(
         "--scope", options.scope,
         "only these tensors ('model.layers.*') are sent, or read with --from-disk, all of which CHECKPOINT must "
         "have; a replica copies the others from its live version")
      ->type_name("PATTERN");
  AddBytes(app, "--max-rate", options.max_rate,
           "bytes a second, to all replicas together; default: as fast as it goes");
  CLI::Option* ranks = AddNumber(app, "--trainer-ranks", options.trainer_ranks,
                                 "splits the checkpoint over so many processes, each of which sends its own share");
  ranks->check(CLI::Range(1, kMaxTrainerRanks));
  app.add_option("--trainer-layout", options.trainer_layout,
                 "how the ranks split it: fsdp, mesh:AxB or megatron:tp=N,pp=N,ep=N, whose sizes multiply to N")
      ->capture_default_str();
  app.add_flag("--gather", options.gather,
               "rank 0 gathers full tensors, a few at a time, and alone sends them; not each its share")
      ->needs(ranks);
  app.add_flag(kAsTrainerRank, options.as_trainer_rank)->group("");  // set by the process that starts the ranks
  AddDuration(app, "--deadline", options.deadline, "of the whole publish");
  CLI::Option* listen = AddAddress(app, "--listen", options.listen, "serve the publisher's own status meanwhile");
  app.add_flag("--serve", options.serve,
               "stay as the source of the fleet: of replicas that join late, come back, or have missed the version")
      ->needs(listen);
  CLI::Option* from_disk = app.add_flag("--from-disk", options.from_disk,
                                        "each replica reads CHECKPOINT itself, a directory of its host beneath an "
                                        "--allow-root of its own, and flips when it is ready: nothing is sent");
  for (const char* const option : kOfSenders) from_disk->excludes(app.get_option(option));
  AddReadOptions(app, options.read);
  AddBothSecurity(app, options.security);
}

}  // namespace

Command PublishCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "publish", "Publishes a checkpoint into running engines, as a trainer would.",
                                "bascule publish ./next-checkpoint --to 127.0.0.1:7000");
  auto options = std::make_shared<PublishOptions>();
  AddPublishOptions(*app, *options);
  return {app, [options](Program& program) { return RunPublish(program, *options); }};
}

}  // namespace bascule
