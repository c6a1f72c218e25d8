// bascule plan: what a sync between two layouts would move, hold and cost, without moving a byte.
#include <memory>
#include <nlohmann/json.hpp>

#include "bridge/plan/forecast.h"
#include "bridge/plan/planner.h"
#include "checkpoint/layout_file.h"
#include "tools/command.h"
#include "tools/engine_cut.h"
#include "tools/options.h"
#include "trainer_side/layouts/layout_spec.h"

namespace bascule {
namespace {

constexpr std::int32_t kCredits = 4;  // what `publish` asks for
constexpr std::size_t kRoutesShown = 16;

struct PlanCommandOptions {
  std::string checkpoint;
  std::string trainer_file;
  std::string engine_file;
  int tensor_parallel = 1;
  std::uint64_t trainer_ranks = 1;
  std::string trainer_layout = "fsdp";
  std::string print;
  PlanOptions plan;
  Speeds speeds;
};

struct TwoLayouts {
  Layout trainer;
  Layout engine;
};

Result<Layout> TrainerOf(const LogicalCheckpoint& checkpoint, const PlanCommandOptions& options) {
  if (options.trainer_ranks == 1) return PlainLayout(checkpoint.tensors());
  constexpr std::uint64_t kRanksMax = 1 << 16;
  if (options.trainer_ranks > kRanksMax) {
    return UsageError(fmt::format("--trainer-ranks {}, at most {}", options.trainer_ranks, kRanksMax));
  }
  const ModelConfig* config = checkpoint.config().ok() ? &*checkpoint.config() : nullptr;
  return MakeTrainerLayout(options.trainer_layout, static_cast<int>(options.trainer_ranks), checkpoint.tensors(),
                           config);
}

// Each side from its file, else as the checkpoint would be cut.
Result<TwoLayouts> LayoutsOf(const PlanCommandOptions& options) {
  if (options.checkpoint.empty() && (options.trainer_file.empty() || options.engine_file.empty())) {
    return UsageError("--trainer and --engine are required where no checkpoint says what they would be");
  }
  TwoLayouts sides;
  if (!options.trainer_file.empty()) {
    ASSIGN_OR_RETURN(sides.trainer, ReadLayoutFile(options.trainer_file));
  }
  if (!options.engine_file.empty()) {
    ASSIGN_OR_RETURN(sides.engine, ReadLayoutFile(options.engine_file));
  }
  if (!options.trainer_file.empty() && !options.engine_file.empty()) return sides;
  ASSIGN_OR_RETURN(const LogicalCheckpoint checkpoint, LogicalCheckpoint::Open(options.checkpoint));
  if (options.trainer_file.empty()) {
    ASSIGN_OR_RETURN(sides.trainer, TrainerOf(checkpoint, options));
  }
  if (options.engine_file.empty()) {
    ASSIGN_OR_RETURN(EngineLayout engine,
                     EngineLayoutOf(checkpoint, {.tensor = options.tensor_parallel}, WantedDType::kKeep));
    sides.engine = std::move(engine.layout);
  }
  return sides;
}

Json FlipJson(const FlipForecast& flip) {
  return {{"mode", flip.mode},
          {"device_bytes", flip.device_bytes},
          {"host_bytes", flip.host_bytes},
          {"stall_s", flip.stall_seconds},
          {"stall", flip.stall},
          {"way_back", flip.way_back},
          {"guarantee", flip.guarantee}};
}

Json PlanJson(const Plan& plan, const Forecast& forecast, const Speeds& speeds) {
  Json routes = Json::array();
  for (const RouteForecast& route : forecast.routes) {
    routes.push_back({{"trainer_rank", route.route.sender_rank},
                      {"engine_rank", route.route.engine_rank},
                      {"bytes", route.bytes},
                      {"buckets", route.buckets},
                      {"slices", route.slices}});
  }
  Json flips = Json::array();
  for (const FlipForecast& flip : forecast.flips) flips.push_back(FlipJson(flip));
  return {{"plan_digest", plan.digest.ToHex()},    {"tensors", plan.tensors.size()},
          {"bytes", plan.payload_bytes},           {"buckets", plan.buckets.size()},
          {"routes", std::move(routes)},           {"trainer_bytes", forecast.trainer_bytes},
          {"engine_bytes", forecast.engine_bytes}, {"slot_bytes", forecast.slot_bytes},
          {"frames_bytes", forecast.frames_bytes}, {"link_bytes_per_s", speeds.link},
          {"memory_bytes_per_s", speeds.memory},   {"transfer_s", forecast.transfer_seconds},
          {"flip_modes", std::move(flips)},        {"ignored", plan.names.ignored}};
}

std::string RoutesText(const Forecast& forecast) {
  std::vector<std::vector<std::string>> table = {{"TRAINER RANK", "ENGINE RANK", "BYTES", "BUCKETS", "SLICES"}};
  for (std::size_t i = 0; i < std::min(kRoutesShown, forecast.routes.size()); ++i) {
    const RouteForecast& route = forecast.routes[i];
    table.push_back({std::to_string(route.route.sender_rank), std::to_string(route.route.engine_rank),
                     BytesText(route.bytes), std::to_string(route.buckets), std::to_string(route.slices)});
  }
  const std::size_t left = forecast.routes.size() - (table.size() - 1);
  return TableText(table) + (left == 0 ? "" : fmt::format("\n... and {} more routes; --json has them all", left));
}

std::string FlipsText(const Forecast& forecast) {
  std::vector<std::vector<std::string>> table = {{"FLIP", "MORE MEMORY A RANK", "IN HOST MEMORY", "STALL"}};
  std::string notes;
  for (const FlipForecast& flip : forecast.flips) {
    table.push_back({std::string(flip.mode), BytesText(flip.device_bytes), BytesText(flip.host_bytes),
                     flip.stall_seconds == 0 ? std::string(flip.stall) : fmt::format("{:.3g} s", flip.stall_seconds)});
    notes += fmt::format("\n{}: {}. Way back: {}.", flip.mode, flip.guarantee, flip.way_back);
  }
  return TableText(table) + "\n" + notes;
}

std::string PlanReport(const Plan& plan, const Forecast& forecast, const Speeds& speeds) {
  return fmt::format(
      "plan {}\n{} tensors, {} in {} buckets on {} routes\n\n{}\n\nat least {:.3g} s at {}/s a rank; buckets in flight "
      "take up to {} on an engine rank\n\n{}",
      plan.digest.ToHex(), plan.tensors.size(), BytesText(plan.payload_bytes), plan.buckets.size(), plan.routes.size(),
      RoutesText(forecast), forecast.transfer_seconds, BytesText(speeds.link), BytesText(forecast.frames_bytes),
      FlipsText(forecast));
}

Outcome RunPlan(Program& program, const PlanCommandOptions& options) {
  ASSIGN_OR_RETURN(const TwoLayouts sides, LayoutsOf(options));
  if (!options.print.empty()) {
    std::string text = WriteLayout(options.print == "engine" ? sides.engine : sides.trainer);
    text.pop_back();  // the line break, which is printed
    program.out.PrintText(text);
    return {};
  }
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(sides.trainer, sides.engine, options.plan));
  const Forecast forecast = ForecastOf(plan, sides.engine, options.plan.bucket_bytes, kCredits, options.speeds);
  if (program.out.json()) {
    program.out.PrintObject(PlanJson(plan, forecast, options.speeds));
  } else {
    program.out.PrintText(PlanReport(plan, forecast, options.speeds));
  }
  return {};
}

}  // namespace

Command PlanCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "plan", "Says what a sync would move, hold and cost, and moves nothing.",
                                "bascule plan --trainer trainer.json --engine engine.json");
  auto options = std::make_shared<PlanCommandOptions>();
  app->add_option("checkpoint", options->checkpoint, "what the side without a file is cut from");
  app->add_option("--trainer", options->trainer_file, "the trainer's layout, a file (docs/layout_file.md)");
  app->add_option("--engine", options->engine_file, "the engine's layout, a file");
  AddTensorParallel(*app, options->tensor_parallel);
  AddNumber(*app, "--trainer-ranks", options->trainer_ranks, "over which the checkpoint is split")->check(AtLeast(1));
  app->add_option("--trainer-layout", options->trainer_layout, "how: plain, fsdp, mesh:AxB, megatron:tp=N,pp=N,ep=N")
      ->capture_default_str();
  app->add_option("--print", options->print, "print that side's layout file instead: trainer or engine")
      ->check(CLI::IsMember({"trainer", "engine"}));
  app->add_option("--ignore", options->plan.ignore, "tensors that the engine need not know; '*' stands for any text")
      ->type_name("PATTERN");
  AddBytes(*app, "--bucket-bytes", options->plan.bucket_bytes, "most payload bytes in a bucket");
  AddBytes(*app, "--link", options->speeds.link, "that a rank's link carries in a second");
  AddBytes(*app, "--memory", options->speeds.memory, "that an engine rank copies in a second");
  return {app, [options](Program& program) { return RunPlan(program, *options); }};
}

}  // namespace bascule
