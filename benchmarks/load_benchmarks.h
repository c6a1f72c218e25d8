// The benchmarks of loading a checkpoint from disk, as the registry lists them.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunColdLoadBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunWarmLoadBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunDaemonStartBenchmark(const BenchmarkScale& scale);

}  // namespace bascule
