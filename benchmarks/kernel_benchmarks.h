// The benchmarks of single kernels, as the registry lists them.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunMemoryBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunDigestBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunPackBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunUnpackBenchmark(const BenchmarkScale& scale);

}  // namespace bascule
