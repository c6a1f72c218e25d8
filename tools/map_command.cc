// bascule map: where an engine's tensors come from, row by row.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bridge/plan/planner.h"
#include "tools/command.h"
#include "tools/engine_cut.h"
#include "tools/options.h"

namespace bascule {
namespace {

struct MapOptions {
  std::string checkpoint;
  ParallelLayout parallel;
  std::optional<std::uint64_t> rank;
  std::vector<std::string> ignore;
};

// [[begin, end], ...], a pair for each dimension.
Json BoxJson(const Box& box) {
  Json ranges = Json::array();
  for (int d = 0; d < box.dims(); ++d) ranges.push_back({box.offset[d], box.offset[d] + box.extent[d]});
  return ranges;
}

Json RowJson(std::size_t rank, const MapRow& row, const Layout& layout) {
  const LocalTensor& local = layout.ranks[rank].tensors[static_cast<std::size_t>(row.local)];
  Json object = {{"rank", rank}, {"engine_tensor", local.name}, {"engine_box", BoxJson(row.local_box)}};
  if (row.logical == kFill) {
    object["fill"] = 0;
  } else {
    object["logical_tensor"] = layout.tensors[static_cast<std::size_t>(row.logical)].name;
    object["logical_box"] = BoxJson(row.logical_box);
  }
  return object;
}

std::vector<std::string> RowText(std::size_t rank, const MapRow& row, const Layout& layout) {
  const LocalTensor& local = layout.ranks[rank].tensors[static_cast<std::size_t>(row.local)];
  const bool fill = row.logical == kFill;
  return {std::to_string(rank), local.name, row.local_box.ToString(),
          fill ? "zeros" : layout.tensors[static_cast<std::size_t>(row.logical)].name,
          fill ? "" : row.logical_box.ToString()};
}

void ShowNames(Output& out, const NameSets& names) {
  if (out.json()) {
    out.PrintObject(Json{{"expected", names.expected},
                         {"loaded", names.loaded},
                         {"ignored", names.ignored},
                         {"unexpected", names.unexpected}});
    return;
  }
  out.PrintText(fmt::format("\nloaded {}, ignored {}, expected but missing {}, unexpected {}", names.loaded.size(),
                            names.ignored.size(), names.expected.size(), names.unexpected.size()));
  for (const std::string& name : names.ignored) out.PrintText("  ignored     " + name);
  for (const std::string& name : names.expected) out.PrintText("  missing     " + name);
  for (const std::string& name : names.unexpected) out.PrintText("  unexpected  " + name);
}

void ShowRows(Output& out, const Layout& layout, std::optional<std::uint64_t> wanted) {
  std::vector<std::vector<std::string>> table = {{"RANK", "ENGINE TENSOR", "BOX", "LOGICAL TENSOR", "BOX"}};
  for (std::size_t rank = 0; rank < layout.ranks.size(); ++rank) {
    if (wanted && *wanted != rank) continue;
    for (const MapRow& row : layout.ranks[rank].rows) {
      if (out.json()) {
        out.PrintObject(RowJson(rank, row, layout));
      } else {
        table.push_back(RowText(rank, row, layout));
      }
    }
  }
  if (!out.json()) out.PrintText(TableText(table));
}

Outcome RunMap(Program& program, const MapOptions& options) {
  ASSIGN_OR_RETURN(const LogicalCheckpoint checkpoint, LogicalCheckpoint::Open(options.checkpoint));
  ASSIGN_OR_RETURN(const EngineLayout engine, EngineLayoutOf(checkpoint, options.parallel, WantedDType::kKeep));
  if (options.rank && *options.rank >= engine.layout.ranks.size()) {
    return UsageError(fmt::format("--rank {} of {} ranks", *options.rank, engine.layout.ranks.size()));
  }
  ShowRows(program.out, engine.layout, options.rank);
  NameSets names = CompareNames(checkpoint.tensors(), engine.layout.tensors, options.ignore);
  names.ignored.insert(names.ignored.end(), checkpoint.dropped().begin(), checkpoint.dropped().end());
  ShowNames(program.out, names);
  // Whether the checkpoint fits; the rows are shown either way.
  return MakePlan(checkpoint.source().layout(), engine.layout, {.ignore = options.ignore}).status();
}

}  // namespace

Command MapCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "map", "Shows which part of which tensor each engine rank gets, and where.",
                                "bascule map ./checkpoint --tp 2 --rank 1");
  auto options = std::make_shared<MapOptions>();
  app->add_option("checkpoint", options->checkpoint, "a directory with config.json and *.safetensors")->required();
  AddTensorParallel(*app, options->parallel.tensor)->required();
  AddNumber(*app, "--rank", options->rank, "this engine rank only");
  app->add_option("--ignore", options->ignore, "tensors that the engine need not know; '*' stands for any text")
      ->type_name("PATTERN");
  return {app, [options](Program& program) { return RunMap(program, *options); }};
}

}  // namespace bascule
