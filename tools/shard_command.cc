// bascule shard: cuts a checkpoint for an engine layout, one file a rank.
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/dtype_option.h"
#include "tools/engine_cut.h"
#include "tools/model_origin.h"
#include "tools/options.h"
#include "tools/read_option.h"
#include "tools/write_progress.h"

namespace bascule {
namespace {

struct ShardOptions {
  std::string checkpoint;
  std::string out;
  ParallelLayout parallel;
  WantedDType dtype = WantedDType::kKeep;
  std::vector<std::string> ignore;
  ReadOptions read;
};

Result<ArtifactRecipe> RecipeOf(const LogicalCheckpoint& checkpoint, const ShardOptions& options) {
  if (checkpoint.artifact() != nullptr) {
    return Status::InvalidArgument("not_a_checkpoint",
                                   fmt::format("{} is an artifact; unshard it first", checkpoint.path()));
  }
  ArtifactRecipe recipe;
  ASSIGN_OR_RETURN(EngineLayout layout, EngineLayoutOf(checkpoint, options.parallel, options.dtype));
  ASSIGN_OR_RETURN(recipe.fingerprint, FingerprintOf(checkpoint, options.parallel, options.dtype));
  ASSIGN_OR_RETURN(recipe.origin, OriginOf(checkpoint.path(), checkpoint.config_json()));
  recipe.source = &checkpoint.source();
  recipe.layout = std::move(layout.layout);
  recipe.stored = checkpoint.source().layout();
  recipe.config_json = checkpoint.config_json();
  recipe.ignore = options.ignore;
  recipe.dropped = checkpoint.dropped();
  return recipe;
}

Json RanksJson(const ArtifactManifest& manifest) {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < manifest.ranks.size(); ++r) {
    ranks.push_back({{"rank", r}, {"bytes", manifest.ranks[r].bytes}, {"file", manifest.ranks[r].file}});
  }
  return {{"ranks", std::move(ranks)}, {"version_digest", manifest.version_digest.ToHex()}};
}

std::string RanksText(const ArtifactManifest& manifest) {
  std::vector<std::vector<std::string>> rows = {{"RANK", "FILE", "BYTES"}};
  for (std::size_t r = 0; r < manifest.ranks.size(); ++r) {
    rows.push_back({std::to_string(r), manifest.ranks[r].file, BytesText(manifest.ranks[r].bytes)});
  }
  return TableText(rows) + "\n\nversion  " + manifest.version_digest.ToHex();
}

Outcome RunShard(Program& program, const ShardOptions& options) {
  ASSIGN_OR_RETURN(const LogicalCheckpoint checkpoint, LogicalCheckpoint::Open(options.checkpoint, options.read));
  ASSIGN_OR_RETURN(ArtifactRecipe recipe, RecipeOf(checkpoint, options));
  WriteProgress progress(program, "shard");
  const auto manifest = WriteArtifact(std::move(recipe), options.out, progress.control());
  if (!manifest.ok()) return progress.Explained(manifest.status());
  if (program.out.json()) {
    program.out.PrintObject(RanksJson(*manifest));
  } else {
    program.out.PrintText(RanksText(*manifest));
  }
  return {};
}

}  // namespace

Command ShardCommand(CLI::App& parent) {
  CLI::App* app =
      AddSubcommand(parent, "shard", "Cuts a checkpoint for an engine layout: an artifact, from which engines start.",
                    "bascule shard ./checkpoint --tp 2 --out ./artifact");
  auto options = std::make_shared<ShardOptions>();
  app->add_option("checkpoint", options->checkpoint, "a directory with config.json and *.safetensors")->required();
  AddTensorParallel(*app, options->parallel.tensor)->required();
  app->add_option("--out", options->out, "directory to make; it appears once it is whole")
      ->required()
      ->type_name("DIR");
  AddDType(*app, options->dtype, "of the weights in the artifact");
  app->add_option("--ignore", options->ignore, "tensors that the engine need not know; '*' stands for any text")
      ->type_name("PATTERN");
  AddReadOptions(*app, options->read);
  return {app, [options](Program& program) { return RunShard(program, *options); }};
}

}  // namespace bascule
