// The benchmarks of whole publishes, between two processes, as the registry lists them.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunSyncShmBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunSyncGrpcBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunReshardShmBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunGatherShmBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunSyncGlooBenchmark(const BenchmarkScale& scale);  // where gloo is installed

}  // namespace bascule
