// bascule digest: the layout-independent digests of a checkpoint or an artifact, in logical names.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/command.h"
#include "tools/dtype_option.h"
#include "tools/logical_checkpoint.h"
#include "tools/options.h"
#include "tools/read_option.h"

namespace bascule {
namespace {

struct DigestOptions {
  std::string checkpoint;
  bool tensors = false;
  WantedDType dtype = WantedDType::kKeep;
  ReadOptions read;
};

std::string DigestText(const CheckpointDigest& digest, bool tensors) {
  if (!tensors) return digest.version_digest.ToHex();
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DTYPE", "SHAPE", "DIGEST"}};
  for (std::size_t t = 0; t < digest.tensors.size(); ++t) {
    const TensorSpec& spec = digest.tensors[t];
    rows.push_back({spec.name, std::string(DTypeName(spec.dtype)), spec.shape.ToString(), digest.digests[t].ToHex()});
  }
  return TableText(rows) + "\n\nversion  " + digest.version_digest.ToHex();
}

// What a quantised artifact was made from; nothing where that has the digest of the artifact itself.
std::optional<Hash256> SourceDigestOf(const LogicalCheckpoint& checkpoint) {
  if (checkpoint.artifact() == nullptr) return std::nullopt;
  const ArtifactManifest& manifest = checkpoint.artifact()->manifest();
  return manifest.source_digest == manifest.version_digest ? std::nullopt : std::optional(manifest.source_digest);
}

Json DigestJson(const CheckpointDigest& digest, bool tensors, const std::optional<Hash256>& source) {
  Json object = {{"version_digest", digest.version_digest.ToHex()}};
  if (source) object["source_version_digest"] = source->ToHex();
  if (!tensors) return object;
  Json& by_name = object["tensors"] = Json::object();
  for (std::size_t t = 0; t < digest.tensors.size(); ++t) by_name[digest.tensors[t].name] = digest.digests[t].ToHex();
  return object;
}

Outcome RunDigest(Program& program, const DigestOptions& options) {
  ASSIGN_OR_RETURN(const LogicalCheckpoint checkpoint,
                   LogicalCheckpoint::Open(options.checkpoint, UntilInterrupted(options.read, program.interrupt)));
  std::vector<TensorSpec> specs = checkpoint.tensors();
  for (TensorSpec& spec : specs) spec.dtype = StorageDType(spec, options.dtype);
  ASSIGN_OR_RETURN(const CheckpointDigest digest, DigestCheckpoint(checkpoint, std::move(specs)));
  const std::optional<Hash256> source = SourceDigestOf(checkpoint);
  if (program.out.json()) {
    program.out.PrintObject(DigestJson(digest, options.tensors, source));
  } else {
    program.out.PrintText(DigestText(digest, options.tensors));
    if (source) program.out.PrintText("quantised from  " + source->ToHex());
  }
  return {};
}

}  // namespace

Command DigestCommand(CLI::App& parent) {
  CLI::App* app =
      AddSubcommand(parent, "digest", "Digests a checkpoint or an artifact: the same number however it is sharded.",
                    "bascule digest ./checkpoint --tensors");
  auto options = std::make_shared<DigestOptions>();
  app->add_option("checkpoint", options->checkpoint, "a checkpoint, a .safetensors file or an artifact")->required();
  app->add_flag("--tensors", options->tensors, "print the digest of each tensor too");
  AddDType(*app, options->dtype, "digest the tensors as an engine of this type holds them");
  AddReadOptions(*app, options->read);
  return {app, [options](Program& program) { return RunDigest(program, *options); }};
}

}  // namespace bascule
