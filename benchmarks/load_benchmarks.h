// The benchmarks of checkpoints on disk, as the registry lists them.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunColdLoadBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunWarmLoadBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunDaemonStartBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunFilesBenchmark(const BenchmarkScale& scale);

}  // namespace bascule
