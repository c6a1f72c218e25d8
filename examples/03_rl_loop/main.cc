// A policy learns to sort digits by reinforcement learning, through the bridge: this process trains it on two trainer
// ranks, a `bascule engine` that it starts generates the rollouts, and every optimizer step becomes a version that is
// published into the engine while it decodes. README.md shows what it prints.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "examples/03_rl_loop/engine_program.h"
#include "examples/03_rl_loop/svg_chart.h"
#include "examples/03_rl_loop/training_loop.h"
#include "tools/interrupt.h"
#include "tools/outcome.h"

namespace bascule::rl_loop {
namespace {

constexpr int kFullRun = 120;  // steps; over fewer nothing is asked of the reward
constexpr double kWantedReward = 0.9;
constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr Duration kStopTimeout = std::chrono::seconds(10);
constexpr char kRun[] = "rl-loop";

struct Options {
  int steps = kFullRun;
  std::uint64_t seed = 1;
  bool no_publish = false;
  std::string out = "rl_loop_out";
  std::string program = BASCULE_PROGRAM;
};

Deadline In(Duration time) { return Deadline::After(Clock::Real(), time); }

Result<std::unique_ptr<EngineProgram>> StartEngine(const Options& options, const Trainer& trainer) {
  const std::string checkpoint = options.out + "/initial_checkpoint";
  RETURN_IF_ERROR(trainer.WriteCheckpoint(checkpoint));
  return EngineProgram::Start(
      {.program = options.program,
       .arguments = {checkpoint, "--listen", "127.0.0.1:0", "--run", kRun, "--version", "0", "--threads", "1"},
       .log_path = options.out + "/engine.log"},
      In(kStartTimeout));
}

void PrintLine(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

Result<RunRecord> TrainThrough(const std::string& engine, const Options& options, Trainer& trainer,
                               const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto client, RolloutClient::Connect(engine, In(kConnectTimeout)));
  RolloutSampler sampler(*client, SortTask{}, {.seed = options.seed});
  ASSIGN_OR_RETURN(TensorSource source, trainer.Source());
  ASSIGN_OR_RETURN(const auto publisher, VersionPublisher::Create(engine, kRun, std::move(source), sampler));
  PrintLine(TableHeading());
  ASSIGN_OR_RETURN(RunRecord record,
                   RunTrainingLoop(
                       {trainer, sampler, options.no_publish ? nullptr : publisher.get()}, options.steps,
                       [](const StepRecord& step) { PrintLine(TableRow(step)); }, stop));
  if (const auto& last = record.steps.back().published) RETURN_IF_ERROR(publisher->CheckLiveMemory(last->version));
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

Status Run(const Options& options, const std::stop_token& stop) {
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) return Status::Unavailable("cannot_write", options.out + ": " + error.message());
  Trainer trainer({.seed = options.seed, .total_steps = options.steps});
  ASSIGN_OR_RETURN(const auto engine, StartEngine(options, trainer));
  PrintLine(fmt::format("trainer     {} parameters in fp32 on two trainer ranks\nengine      bf16, process {}, {}\n",
                        trainer.parameter_count(), engine->pid(), engine->address()));

  const auto record = TrainThrough(engine->address(), options, trainer, stop);
  const Status stopped = engine->Stop(In(kStopTimeout));
  if (stop.stop_requested()) return InterruptedError();
  RETURN_IF_ERROR(record.status());
  RETURN_IF_ERROR(stopped);

  const RunSummary summary = Summarize(*record);
  PrintLine("\n" + SummaryText(summary));
  RETURN_IF_ERROR(WriteFiles(options, *record, summary));
  if (options.no_publish || options.steps < kFullRun || summary.last_reward >= kWantedReward) return OkStatus();
  return Status::Aborted("not_learned", fmt::format("last reward {:.3f}, want {}", summary.last_reward, kWantedReward));
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
  app.add_option("--seed", options.seed, "of weights, prompts and samples")->capture_default_str();
  app.add_flag("--no-publish", options.no_publish, "the engine keeps the first version: the reward stays flat");
  app.add_option("--out", options.out, "folder for the CSV, the chart and the engine's log")->capture_default_str();
  app.add_option("--bascule", options.program, "path of the bascule program")->capture_default_str();
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
