// What `bascule digest`, `verify` and `shard` do with files: read, digest and write them.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "benchmarks/bench_checkpoint.h"
#include "benchmarks/bench_model.h"
#include "benchmarks/load_benchmarks.h"
#include "benchmarks/measure.h"
#include "bridge/send/source_digest.h"
#include "checkpoint/artifact.h"
#include "checkpoint/checkpoint.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr int kRanks = 2;

// What `digest` and `verify` do with each side: a thread for each core.
Status DigestAll(const WeightSource& source) { return DigestSource(source, source.layout().tensors, 0).status(); }

Status DigestArtifact(const std::string& path) {
  ASSIGN_OR_RETURN(const auto artifact, Artifact::Open(Directory::At(path)));
  return DigestAll(*artifact);
}

Status Shard(const ModelConfig& config, const Checkpoint& checkpoint, const std::string& out) {
  ASSIGN_OR_RETURN(EngineLayout engine, MakeEngineLayout(config, DType::kBf16, {.tensor = kRanks}));
  ArtifactRecipe recipe;
  recipe.source = &checkpoint;
  recipe.layout = std::move(engine.layout);
  recipe.stored = checkpoint.layout();
  recipe.fingerprint = {.architecture = "benchmark", .tensor = kRanks, .dtype = "BF16", .quantization = "none"};
  recipe.families = std::move(engine.families);
  return WriteArtifact(std::move(recipe), out, {}).status();
}

Result<double> Timed(const std::function<Status()>& work) {
  Status status;
  const double seconds = SecondsOf([&] { status = work(); });
  RETURN_IF_ERROR(status);
  return seconds;
}

// Removes what the last turn wrote, and waits until the disk has heard of it: that is nobody's work.
void Settle(const std::string& scratch, const std::string& file) {
  std::filesystem::remove_all(scratch + file);
  const int fd = open(scratch.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  syncfs(fd);
  close(fd);
}

Result<std::vector<BenchmarkRow>> DigestRows(const BenchCheckpoint& files, const Checkpoint& checkpoint,
                                             const std::string& artifact, int rounds) {
  const Measured contenders[] = {
      [&] { return Timed([&] { return files.ReadCachedInPieces(); }); },
      [&] { return Timed([&] { return DigestAll(checkpoint); }); },
      [&] { return Timed([&] { return DigestArtifact(artifact); }); },
  };
  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, rounds));
  const auto rate = [&](std::size_t contender) { return GigabytesPerSecond(files.bytes(), seconds[contender]); };
  constexpr const char* kLimit = "pread from the page cache, two threads, a MiB at a time";
  return std::vector<BenchmarkRow>{{"files_digest", rate(1), "GB/s", rate(0), kLimit},
                                   {"files_digest_artifact", rate(2), "GB/s", rate(0), kLimit}};
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunFilesBenchmark(const BenchmarkScale& scale) {
  constexpr int kWritesMax = 3;  // disks slow down for who writes much
  constexpr const char* kArtifact = "/artifact";
  constexpr const char* kCopy = "/copy";
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const BenchCheckpoint files, BenchCheckpoint::Write(config, scale.scratch));
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(files.path()));
  const Measured contenders[] = {
      [&] {
        Settle(scale.scratch, kCopy);
        return Timed([&] { return files.CopyTo(scale.scratch + kCopy); });
      },
      [&] {
        Settle(scale.scratch, kArtifact);
        return Timed([&] { return Shard(config, *checkpoint, scale.scratch + kArtifact); });
      },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, std::min(scale.rounds, kWritesMax)));
  ASSIGN_OR_RETURN(std::vector<BenchmarkRow> rows,
                   DigestRows(files, *checkpoint, scale.scratch + kArtifact, scale.rounds));

  rows.push_back({"files_shard_tp2", GigabytesPerSecond(files.bytes(), seconds[1]), "GB/s",
                  GigabytesPerSecond(files.bytes(), seconds[0]), "the same bytes copied to a new file, on disk"});
  return rows;
}

}  // namespace bascule
