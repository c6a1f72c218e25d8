#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "benchmarks/benchmark.h"
#include "benchmarks/decode_benchmarks.h"
#include "benchmarks/kernel_benchmarks.h"
#include "benchmarks/load_benchmarks.h"
#include "benchmarks/peer_process.h"
#include "benchmarks/plan_benchmarks.h"
#include "benchmarks/row_message.h"
#include "benchmarks/sync_benchmarks.h"
#include "benchmarks/transport_benchmarks.h"

namespace bascule {
namespace {

constexpr Benchmark kBenchmarks[] = {
    {"memory", "reading and copying memory, the limits of the others", RunMemoryBenchmark},
    {"digest", "the layout-independent digest of memory", RunDigestBenchmark},
    {"pack", "a tensor into frames, with its digest, and with conversion to bf16", RunPackBenchmark},
    {"unpack", "frames into a slot, with the digest of what is stored", RunUnpackBenchmark},
    {"shm", "frames copied into and out of shared memory, between two processes", RunShmBenchmark},
    {"grpc", "frames copied into and out of a gRPC stream, over the loopback interface", RunGrpcBenchmark},
    {"cold_load", "a checkpoint from disk into an engine, past the page cache", RunColdLoadBenchmark},
    {"warm_load", "the same from the page cache; its memory, and what 8 ranks read", RunWarmLoadBenchmark},
    {"daemon_start", "an engine's start from its host's cache daemon, and from files in the page cache",
     RunDaemonStartBenchmark},
    {"files", "a checkpoint on disk digested, and cut for two ranks", RunFilesBenchmark},
    {"sync_shm", "a publish over shared memory to an engine process, until it is verified", RunSyncShmBenchmark},
    {"sync_grpc", "the same over gRPC", RunSyncGrpcBenchmark},
    {"reshard_shm", "a publish of four trainer processes to two engine ranks, beside the first",
     RunReshardShmBenchmark},
    {"gather_shm", "a publish of full tensors that rank 0 of four trainer processes gathers, beside the first",
     RunGatherShmBenchmark},
#if defined(BASCULE_GLOO)
    {"sync_gloo", "the first beside what Python trainers do on CPUs", RunSyncGlooBenchmark},
#endif
    {"fleet", "one publisher and 1 to 1000 engines: time to commit, and memory a rank", RunFleetBenchmark},
    {"plan_moe", "planning a mixture of experts of a trillion parameters, 256 ranks to 128", RunPlanBenchmark},
    {"decode", "tokens of 1, 4 and 16 requests at once, and of a prompt of 512", RunDecodeBenchmark},
    {"decode_while_staging", "tokens and their gaps while a version stages, beside the undisturbed ones",
     RunStagingBenchmark},
    {"stall_shadow", "how long decoding stands still when a version goes live; and when it pauses for the transfer",
     RunStallBenchmark},
    {"stall_in_place", "the same where the bytes change places instead of the slots", RunInPlaceBenchmark},
};

constexpr Duration kPatience = std::chrono::minutes(30);  // of one benchmark

// Files of a benchmark go with it, also when its process is killed: they are as large as a model.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> Make() {
    std::string path = fmt::format("/var/tmp/bascule-bench-{}-XXXXXX", getpid());
    if (mkdtemp(path.data()) == nullptr) return Status::PermissionDenied("directory_not_writable", path);
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(path));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// In a process of its own: with memory that no other benchmark has used, and no thread that one has left behind.
Status RunApart(const Benchmark& benchmark, BenchmarkScale scale, std::stop_token stop,
                const std::function<void(const BenchmarkRow&)>& on_row) {
  ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::Make());
  scale.scratch = scratch->path();
  ASSIGN_OR_RETURN(const auto process, PeerProcess::Start([&](PeerLink& link) -> Status {
                     prctl(PR_SET_PDEATHSIG, SIGKILL);  // it measures for nobody else
                     ASSIGN_OR_RETURN(const std::vector<BenchmarkRow> rows, benchmark.run(scale));
                     for (const BenchmarkRow& row : rows) RETURN_IF_ERROR(link.Send(EncodeRow(row)));
                     return link.Send("");
                   }));
  std::stop_callback kill(stop, [&] { process->Kill(); });
  while (true) {
    const Result<std::string> message = process->link().Receive(Deadline::After(Clock::Real(), kPatience));
    if (stop.stop_requested()) return Status::Cancelled("cancelled", fmt::format("benchmark {}", benchmark.name));
    if (!message.ok()) return message.status().WithContext(fmt::format("benchmark {}", benchmark.name));
    if (message->empty()) return OkStatus();
    on_row(DecodeRow(*message));
  }
}

}  // namespace

std::span<const Benchmark> AllBenchmarks() { return kBenchmarks; }

Status RunBenchmarks(std::string_view name, const BenchmarkScale& scale,
                     const std::function<void(const BenchmarkRow&)>& on_row, std::stop_token stop) {
  std::string names;
  bool found = false;
  for (const Benchmark& benchmark : AllBenchmarks()) {
    names += fmt::format(" {}", benchmark.name);
    if (!name.empty() && name != benchmark.name) continue;
    found = true;
    RETURN_IF_ERROR(RunApart(benchmark, scale, stop, on_row));
  }
  if (found) return OkStatus();
  return Status::NotFound("no_such_benchmark", fmt::format("name={} known:{}", name, names));
}

}  // namespace bascule
