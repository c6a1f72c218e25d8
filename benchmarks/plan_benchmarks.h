// The benchmark of the planner, as the registry lists it.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <vector>

#include "base/status.h"
#include "benchmarks/benchmark.h"

namespace bascule {

// Models of a quarter of the layers up to all, then of half the trainer's and half the engine's ranks; each beside the
// digests of both layouts, which any planner has to compute.
Result<std::vector<BenchmarkRow>> RunPlanBenchmark(const BenchmarkScale& scale);

}  // namespace bascule
