// bascule unshard: an artifact becomes the checkpoint again that it was made from.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/logical_checkpoint.h"
#include "tools/options.h"
#include "tools/read_option.h"
#include "tools/write_progress.h"

namespace bascule {
namespace {

struct UnshardOptions {
  std::string artifact;
  std::string out;
  ReadOptions read;
};

Outcome RunUnshard(Program& program, const UnshardOptions& options) {
  ASSIGN_OR_RETURN(const LogicalCheckpoint opened,
                   LogicalCheckpoint::Open(options.artifact, UntilInterrupted(options.read, program.interrupt)));
  if (opened.artifact() == nullptr) {
    return Status::InvalidArgument("not_an_artifact", options.artifact + " is a checkpoint already");
  }
  WriteProgress progress(program, "unshard");
  const Status written = UnshardArtifact(*opened.artifact(), options.out, progress.control());
  if (!written.ok()) return progress.Explained(written);
  const ArtifactManifest& manifest = opened.artifact()->manifest();
  const std::size_t tensors = manifest.stored.ranks[0].tensors.size();
  if (program.out.json()) {
    Json object{{"tensors", tensors}, {"version_digest", manifest.version_digest.ToHex()}};
    if (!manifest.ignored.empty()) object["absent"] = manifest.ignored;
    program.out.PrintObject(object);
  } else {
    program.out.PrintText(
        fmt::format("{} tensors in {}\nversion  {}", tensors, options.out, manifest.version_digest.ToHex()));
    if (!manifest.ignored.empty()) {
      program.out.PrintText(
          fmt::format("absent   {}: left out when the artifact was made", fmt::join(manifest.ignored, ", ")));
    }
  }
  return {};
}

}  // namespace

Command UnshardCommand(CLI::App& parent) {
  CLI::App* app = AddSubcommand(parent, "unshard", "Gives back the checkpoint that an artifact was made from.",
                                "bascule unshard ./artifact --out ./checkpoint");
  auto options = std::make_shared<UnshardOptions>();
  app->add_option("artifact", options->artifact, "a directory that `bascule shard` wrote")->required();
  app->add_option("--out", options->out, "directory to make; it appears once it is whole")
      ->required()
      ->type_name("DIR");
  AddReadOptions(*app, options->read);
  return {app, [options](Program& program) { return RunUnshard(program, *options); }};
}

}  // namespace bascule
