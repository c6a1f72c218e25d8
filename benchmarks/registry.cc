#include "benchmarks/benchmark.h"
#include "benchmarks/kernel_benchmarks.h"
#include "benchmarks/transport_benchmarks.h"

namespace bascule {
namespace {

constexpr Benchmark kBenchmarks[] = {
    {"memory", "reading and copying memory, the limits of the others", RunMemoryBenchmark},
    {"digest", "the layout-independent digest of memory", RunDigestBenchmark},
    {"pack", "a tensor into frames, with its digest, and with conversion to bf16", RunPackBenchmark},
    {"unpack", "frames into a slot, with the digest of what lies there", RunUnpackBenchmark},
    {"shm", "frames copied into and out of shared memory, between two processes", RunShmBenchmark},
#if defined(BASCULE_HAS_GRPC)
    {"grpc", "frames copied into and out of a gRPC stream, over the loopback interface", RunGrpcBenchmark},
#endif
};

}  // namespace

std::span<const Benchmark> AllBenchmarks() { return kBenchmarks; }

Status RunBenchmarks(std::string_view name, const BenchmarkScale& scale,
                     const std::function<void(const BenchmarkRow&)>& on_row) {
  std::string names;
  bool found = false;
  for (const Benchmark& benchmark : AllBenchmarks()) {
    names += fmt::format(" {}", benchmark.name);
    if (!name.empty() && name != benchmark.name) continue;
    found = true;
    ASSIGN_OR_RETURN(const std::vector<BenchmarkRow> rows, benchmark.run(scale));
    for (const BenchmarkRow& row : rows) on_row(row);
  }
  if (found) return OkStatus();
  return Status::NotFound("no_such_benchmark", fmt::format("name={} known:{}", name, names));
}

}  // namespace bascule
