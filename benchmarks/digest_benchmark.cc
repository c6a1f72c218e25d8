#include "benchmarks/kernel_benchmarks.h"
#include "benchmarks/measure.h"
#include "kernels/digest.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunDigestBenchmark(const BenchmarkScale& scale) {
  constexpr DigestKey kKey{{1, 2, 3, 4}};
  ASSIGN_OR_RETURN(const auto source, NoiseBuffer(scale.bytes));
  const std::function<void()> contenders[] = {
      [&] { ReadMemory(source->bytes()); },
      [&] { Use(DigestRunOnHost(kKey, 0, source->bytes()).lane[0]); },
  };

  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);

  return std::vector<BenchmarkRow>{{"digest", GigabytesPerSecond(scale.bytes, seconds[1]), "GB/s",
                                    GigabytesPerSecond(scale.bytes, seconds[0]), "memory read, one thread"}};
}

}  // namespace bascule
