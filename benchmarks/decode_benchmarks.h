// The benchmarks of an engine that decodes, as the registry lists them.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunStallBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunInPlaceBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunStagingBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunDecodeBenchmark(const BenchmarkScale& scale);

}  // namespace bascule
