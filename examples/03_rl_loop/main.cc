// A policy learns to sort digits by reinforcement learning, through the bridge: trainer ranks, a process each, train
// it, a `bascule engine` that rank 0 starts generates the rollouts, and every optimizer step becomes a version that is
// published into the engine while it decodes. README.md shows what it prints.
//
// Started alone the program is rank 0 and starts the other ranks. Started by a launcher that sets RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT (torchrun, Slurm), it is the rank that those say.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "base/ids.h"
#include "base/net_address.h"
#include "examples/03_rl_loop/collective.h"
#include "examples/03_rl_loop/engine_program.h"
#include "examples/03_rl_loop/svg_chart.h"
#include "examples/03_rl_loop/training_loop.h"
#include "tools/interrupt.h"
#include "tools/outcome.h"
#include "tools/rank_processes.h"
#include "trainer_side/group_environment.h"

namespace bascule::rl_loop {
namespace {

constexpr int kFullRun = 120;  // steps; over fewer nothing is asked of the reward
constexpr double kWantedReward = 0.9;
constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr Duration kStopTimeout = std::chrono::seconds(10);
constexpr char kRun[] = "rl-loop";
constexpr char kEngineKey[] = "engine";  // of what rank 0 says to the others
constexpr int kMostTrainerRanks = 8;     // each has its share of a batch of 24 prompts

struct Options {
  int steps = kFullRun;
  std::uint64_t seed = 1;
  bool no_publish = false;
  int trainer_ranks = 2;
  int tp = 1;
  std::string out = "rl_loop_out";
  std::string program = BASCULE_PROGRAM;
};

Deadline In(Duration time) { return Deadline::After(Clock::Real(), time); }

// Where this process stands among the trainer ranks, and where torch's store is.
struct Place {
  TrainerGroup group;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  bool launched = false;  // the other ranks are started by whoever started this one
  bool leads() const { return group.rank == 0; }
};

Result<Place> PlaceOf(const Options& options) {
  Place place;
  const Environment environment = ProcessEnvironment();
  if (!environment("RANK")) {
    place.group = {.world_size = options.trainer_ranks, .leader = "127.0.0.1:0", .name = InstanceId::Mint().ToString()};
    return place;
  }
  place.launched = true;
  ASSIGN_OR_RETURN(place.group, TrainerGroupFrom(environment));
  if (place.group.world_size > kMostTrainerRanks) {
    return Status::InvalidArgument("bad_options",
                                   fmt::format("WORLD_SIZE={} most={}", place.group.world_size, kMostTrainerRanks));
  }
  const std::string address = environment("MASTER_ADDR").value_or("") + ":" + environment("MASTER_PORT").value_or("");
  ASSIGN_OR_RETURN(const NetAddress master, NetAddress::Parse(address));
  place.host = master.host;
  place.port = master.port;
  return place;
}

Result<std::unique_ptr<EngineProgram>> StartEngine(const Options& options, const Trainer& trainer) {
  const std::string checkpoint = options.out + "/initial_checkpoint";
  RETURN_IF_ERROR(trainer.WriteCheckpoint(checkpoint));
  const std::string tp = std::to_string(options.tp);
  return EngineProgram::Start({.program = options.program,
                               .arguments = {checkpoint, "--listen", "127.0.0.1:0", "--run", kRun, "--version", "0",
                                             "--tp", tp, "--threads", tp},
                               .log_path = options.out + "/engine.log"},
                              In(kStartTimeout));
}

void PrintLine(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// Rank 0 alone says what happens.
void PrintStep(const Collective& ranks, const StepRecord& step) {
  if (ranks.rank() == 0) PrintLine(TableRow(step));
}

// The other ranks, unless somebody else starts them.
Result<std::unique_ptr<RankProcesses>> StartOthers(Place place, const Collective& ranks, const std::string& leader) {
  if (place.launched || place.group.world_size == 1) return std::unique_ptr<RankProcesses>();
  place.group.leader = leader;
  return RankProcesses::Start(place.group, {"MASTER_ADDR=" + place.host, fmt::format("MASTER_PORT={}", ranks.port())});
}

Result<RunRecord> TrainThrough(const std::string& engine, const Options& options, const Place& place, Collective& ranks,
                               Trainer& trainer, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto client, RolloutClient::Connect(engine, In(kConnectTimeout)));
  RolloutSampler sampler(*client, SortTask{},
                         {.seed = options.seed, .rank = place.group.rank, .ranks = place.group.world_size});
  const ParityProbe probe(*client, SortTask{}, options.seed);
  ASSIGN_OR_RETURN(TensorSource source, trainer.Source());
  ASSIGN_OR_RETURN(const auto publisher,
                   VersionPublisher::Create(engine, kRun, place.group, std::move(source), sampler, probe));
  ASSIGN_OR_RETURN(const auto others, StartOthers(place, ranks, publisher->leader()));
  RETURN_IF_ERROR(ranks.Join());
  if (place.leads()) PrintLine(TableHeading());
  auto record = RunTrainingLoop(
      {ranks, trainer, sampler, probe, options.no_publish ? nullptr : publisher.get()}, options.steps,
      [&ranks](const StepRecord& step) { PrintStep(ranks, step); }, stop);
  if (others && record.ok()) others->AwaitEnd(In(kStopTimeout));
  if (others && !record.ok()) RETURN_IF_ERROR(others->Lost());
  if (!record.ok() || !place.leads()) return record;
  if (const auto& last = record->steps.back().published) RETURN_IF_ERROR(publisher->CheckLiveMemory(last->version));
  return record;
}

ChartPanel RewardPanel(const RunRecord& record) {
  ChartPanel panel = {.title = "mean reward of each step's rollouts", .mark = kWantedReward};
  for (const StepRecord& step : record.steps) panel.values.push_back(step.reward);
  return panel;
}

ChartPanel StallPanel(const RunRecord& record, const RunSummary& summary) {
  ChartPanel panel = {.title = fmt::format("time that decode stood still at each flip: p50 {:.1f} µs, p99 {:.1f} µs",
                                           summary.stall_us_p50, summary.stall_us_p99),
                      .form = ChartForm::kLogBars,
                      .unit = "µs"};
  for (const StepRecord& step : record.steps) panel.values.push_back(step.published ? step.published->stall_us : 0);
  return panel;
}

Status WriteFiles(const Options& options, const RunRecord& record, const RunSummary& summary) {
  const std::string csv = options.out + "/steps.csv";
  const std::string svg = options.out + "/curves.svg";
  RETURN_IF_ERROR(WriteText(csv, CsvText(record)));
  RETURN_IF_ERROR(WriteText(svg, SvgOf({RewardPanel(record), StallPanel(record, summary)})));
  PrintLine(fmt::format("files       {}, {}", csv, svg));
  return OkStatus();
}

Status Report(const Options& options, const RunRecord& record) {
  const RunSummary summary = Summarize(record);
  PrintLine("\n" + SummaryText(summary));
  RETURN_IF_ERROR(WriteFiles(options, record, summary));
  if (options.no_publish || options.steps < kFullRun || summary.last_reward >= kWantedReward) return OkStatus();
  return Status::Aborted("not_learned", fmt::format("last reward {:.3f}, want {}", summary.last_reward, kWantedReward));
}

// Rank 0, which has the engine.
Status Lead(const Options& options, const Place& place, Collective& ranks, Trainer& trainer,
            const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto engine, StartEngine(options, trainer));
  RETURN_IF_ERROR(ranks.Say(kEngineKey, engine->address()));
  PrintLine(
      fmt::format("trainer     {} parameters in fp32, cut evenly over {} processes\n"
                  "engine      bf16, tensor parallel {}, process {}, {}\n",
                  trainer.parameter_count(), ranks.size(), options.tp, engine->pid(), engine->address()));
  const auto record = TrainThrough(engine->address(), options, place, ranks, trainer, stop);
  const Status stopped = engine->Stop(In(kStopTimeout));
  if (stop.stop_requested()) return InterruptedError();
  RETURN_IF_ERROR(record.status());
  RETURN_IF_ERROR(stopped);
  return Report(options, *record);
}

Status Run(const Options& options, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(options));
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) return Status::Unavailable("cannot_write", options.out + ": " + error.message());
  ASSIGN_OR_RETURN(const auto ranks, Collective::Open(place.host, place.port, place.group));
  Trainer trainer({.seed = options.seed, .total_steps = options.steps}, *ranks);
  if (place.leads()) return Lead(options, place, *ranks, trainer, stop);
  ASSIGN_OR_RETURN(const std::string engine, ranks->Hear(kEngineKey));
  return TrainThrough(engine, options, place, *ranks, trainer, stop).status();
}

int ExitCode(const Status& status) {
  if (status.reason() == "interrupted") return kExitInterrupted;
  if (status.code() == StatusCode::kDataLoss) return kExitVerificationFailed;
  return status.ok() ? kExitDone : kExitFailed;
}

int Main(int argc, char** argv) {
  Interrupt interrupt;  // before any other thread
  Options options;
  CLI::App app("Teaches a small policy to sort digits, every step of it published into a running engine.", "rl_loop");
  app.footer("Example: rl_loop --steps 120 --seed 1 --out rl_loop_out");
  app.add_option("--steps", options.steps, "optimizer steps; a full run has 120")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--trainer-ranks", options.trainer_ranks, "processes that share parameters and batches")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostTrainerRanks));
  app.add_option("--tp", options.tp, "engine ranks that share every matrix")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4}));
  app.add_option("--seed", options.seed, "of weights, prompts and samples")->capture_default_str();
  app.add_flag("--no-publish", options.no_publish, "the engine keeps the first version: the reward stays flat");
  app.add_option("--out", options.out, "folder for the CSV, the chart and the engine's log")->capture_default_str();
  app.add_option("--bascule", options.program, "path of the bascule program")->capture_default_str();
  bool as_trainer_rank = false;
  app.add_flag(kAsTrainerRank, as_trainer_rank, "this process is started by rank 0")
      ->group("");  // its environment says which it is
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  const Status status = Run(options, interrupt.token());
  if (!status.ok()) fmt::print(stderr, "rl_loop: {}\n", status.ToString());
  return ExitCode(status);
}

}  // namespace
}  // namespace bascule::rl_loop

int main(int argc, char** argv) { return bascule::rl_loop::Main(argc, argv); }
