// bascule shard: cuts a checkpoint for an engine layout, one file a rank.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

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
  bool quantize = false;
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
  recipe.families = std::move(layout.families);
  recipe.source = &checkpoint.source();
  recipe.layout = std::move(layout.layout);
  recipe.stored = checkpoint.source().layout();
  recipe.config_json = checkpoint.config_json();
  recipe.ignore = options.ignore;
  recipe.dropped = checkpoint.dropped();
  return recipe;
}

// What there is to say against the quantised layout is said before any weight is quantised.
Status CheckQuantizedLayout(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel) {
  RETURN_IF_ERROR(checkpoint.config().status());
  ModelConfig config = *checkpoint.config();
  config.quantization = Fp8BlockQuantization();
  const Status status = MakeEngineLayout(config, DType::kBf16, parallel).status();
  return status.ok() ? status : status.WithContext(checkpoint.path());
}

// Makes the checkpoint a quantised one. Gives the version digest of what it was.
Result<Hash256> Quantize(const ShardOptions& options, const std::stop_token& stop, LogicalCheckpoint& checkpoint) {
  if (checkpoint.artifact() != nullptr) return Hash256{};  // refused as such
  RETURN_IF_ERROR(CheckQuantizedLayout(checkpoint, options.parallel));
  ASSIGN_OR_RETURN(const CheckpointDigest digest, DigestCheckpoint(checkpoint, checkpoint.tensors()));
  RETURN_IF_ERROR(checkpoint.QuantizeFp8Blocks(options.dtype, stop));
  return digest.version_digest;
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
  ASSIGN_OR_RETURN(LogicalCheckpoint checkpoint,
                   LogicalCheckpoint::Open(options.checkpoint, UntilInterrupted(options.read, program.interrupt)));
  std::optional<Hash256> source_digest;
  if (options.quantize) {
    ASSIGN_OR_RETURN(source_digest, Quantize(options, program.interrupt.token(), checkpoint));
  }
  ASSIGN_OR_RETURN(ArtifactRecipe recipe, RecipeOf(checkpoint, options));
  recipe.source_digest = source_digest;
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
  app->add_option_function<std::string>(
         "--quantize", [options](const std::string&) { options->quantize = true; },
         "linear weights to FP8 in blocks of 128 x 128, each with one scale; the others stay as --dtype says")
      ->check(CLI::IsMember({"fp8-block"}).description(""))
      ->type_name("fp8-block");
  app->add_option("--ignore", options->ignore, "tensors that the engine need not know; '*' stands for any text")
      ->type_name("PATTERN");
  AddReadOptions(*app, options->read);
  return {app, [options](Program& program) { return RunShard(program, *options); }};
}

}  // namespace bascule
