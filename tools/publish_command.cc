// bascule publish: acts as a trainer whose weights are a checkpoint.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/grpc/grpc_server.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/shm/dialer.h"
#include "model/engine_layout.h"
#include "tools/artifact_check.h"
#include "tools/command.h"
#include "tools/disk_publish.h"
#include "tools/logical_checkpoint.h"
#include "tools/options.h"
#include "tools/publish_progress.h"
#include "tools/publish_report.h"
#include "tools/read_option.h"
#include "trainer_side/grpc/version_status_service.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);  // between looks at the progress
constexpr Duration kCancelTime = std::chrono::seconds(5);   // for replicas to hear that a publish is cancelled

struct PublishOptions {
  std::string checkpoint;
  ReadOptions read;
  std::vector<std::string> to;
  std::optional<std::uint64_t> version;
  std::string run;
  bool new_run = false;
  std::string policy = "each";
  std::string transport = "auto";
  std::vector<std::string> ignore;
  Duration deadline = std::chrono::minutes(5);
  std::string listen;
  std::int64_t max_rate = 0;
  bool from_disk = false;
};

// The ways a publisher can reach its replicas.
struct Dialers {
  GrpcControlDialer control;
  ShmDialer shm;
  GrpcDialer grpc;

  std::vector<TransportDialer*> For(const std::string& transport) {
    if (transport == "shm") return {&shm};
    if (transport == "grpc") return {&grpc};
    return {&shm, &grpc};
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
  publisher.transports = dialers.For(options.transport);
  publisher.run = options.run;
  publisher.new_run = options.new_run;
  publisher.model = checkpoint.model();
  publisher.ignore = options.ignore;
  publisher.max_bytes_per_second = options.max_rate;
  publisher.deadline = options.deadline;
  return publisher;
}

// Waits for the end of the publish; Ctrl-C cancels it, and its replicas still get to hear that.
Result<PublishReport> WaitForReport(Program& program, const PublishOptions& options, WeightPublisher& publisher,
                                    PublishHandle& handle) {
  PublishProgress progress(options.to.front(), !program.out.json());
  Clock& clock = Clock::Real();
  const std::stop_callback cancel(program.interrupt.token(), [&] { publisher.Cancel(); });
  while (!program.interrupt.requested()) {
    auto report = handle.WaitCommitted(Deadline::After(clock, kLook));
    if (report.ok()) return report;
    progress.Update();
  }
  return handle.WaitCommitted(Deadline::After(clock, kCancelTime));
}

Outcome RunPublish(Program& program, const PublishOptions& options) {
  if (options.from_disk) {
    return PublishFromDisk(program, {.path = options.checkpoint,
                                     .to = options.to,
                                     .version = options.version,
                                     .run = options.run,
                                     .new_run = options.new_run,
                                     .ignore = options.ignore,
                                     .deadline = options.deadline});
  }
  ASSIGN_OR_RETURN(const auto checkpoint, LogicalCheckpoint::Open(options.checkpoint, options.read));
  if (checkpoint.artifact() != nullptr) {
    ASSIGN_OR_RETURN(const ArtifactCheck check, CheckArtifact(*checkpoint.artifact()));
    RETURN_IF_ERROR(check.ToStatus(checkpoint.path()));
  }
  ASSIGN_OR_RETURN(TensorSource source, TensorSourceOf(checkpoint.source()));
  Dialers dialers;
  ASSIGN_OR_RETURN(WeightPublisherOptions publisher_options, PublisherOptionsOf(options, checkpoint, dialers));
  ASSIGN_OR_RETURN(const auto publisher, WeightPublisher::Create(std::move(publisher_options), std::move(source)));
  PublisherVersionStatusService status(*publisher);
  std::unique_ptr<GrpcServer> server;
  if (!options.listen.empty()) {
    ASSIGN_OR_RETURN(server, GrpcServer::Start(options.listen, {&status.service()}));
    server->SetServing(true);
    program.out.PrintListening(server->address());
  }
  ASSIGN_OR_RETURN(const auto handle,
                   publisher->Publish({.number = options.version, .labels = {}, .take_over = false}));
  const auto report = WaitForReport(program, options, *publisher, *handle);
  status.Stop();
  if (!report.ok()) return program.interrupt.requested() ? InterruptedError() : report.status();
  if (program.out.json()) {
    program.out.PrintObject(PublishReportJson(*report));
  } else {
    program.out.PrintText(PublishReportText(*report, program.out));
  }
  const Outcome outcome = PublishOutcome(*report);
  return !outcome.status.ok() && program.interrupt.requested() ? Outcome(InterruptedError()) : outcome;
}

void AddPublishOptions(CLI::App& app, PublishOptions& options) {
  app.add_option("checkpoint", options.checkpoint, "a checkpoint, a .safetensors file or an artifact")->required();
  AddAddresses(app, "--to", options.to, "the replicas")->required();
  AddNumber(app, "--version", options.version, "its number; default: the highest seen + 1");
  CLI::Option* run = app.add_option("--run", options.run, "default: the run of the engine's live version");
  app.add_flag("--new-run", options.new_run, "the run starts here, at any number")->needs(run);
  app.add_option("--policy", options.policy, "each: every replica flips when it is ready")
      ->capture_default_str()
      ->check(CLI::IsMember({"each"}));
  app.add_option("--transport", options.transport, "auto: shm on the same host, else grpc")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "shm", "grpc"}));
  app.add_option("--ignore", options.ignore, "tensors that the engine need not know; '*' stands for any text")
      ->type_name("PATTERN");
  CLI::Option* max_rate =
      AddBytes(app, "--max-rate", options.max_rate, "bytes a second, to all replicas together; 0: as fast as it goes");
  app.add_flag("--from-disk", options.from_disk,
               "the replicas read CHECKPOINT themselves: a directory of their host beneath an --allow-root of theirs")
      ->excludes(max_rate);
  AddDuration(app, "--deadline", options.deadline, "of the whole publish");
  AddAddress(app, "--listen", options.listen, "serve the publisher's own status meanwhile");
  AddReadOptions(app, options.read);
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
