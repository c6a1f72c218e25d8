// The benchmarks of whole publishes, as the registry lists them: between two processes, and to a whole fleet in one.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunSyncShmBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunSyncGrpcBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunReshardShmBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunGatherShmBenchmark(const BenchmarkScale& scale);
// Fleets of 1, 10, 100, ... replicas.
Result<std::vector<BenchmarkRow>> RunFleetBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunSyncGlooBenchmark(const BenchmarkScale& scale);  // where gloo is installed

}  // namespace bascule
