#include <cstring>

#include "benchmarks/kernel_benchmarks.h"
#include "benchmarks/measure.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunMemoryBenchmark(const BenchmarkScale& scale) {
  ASSIGN_OR_RETURN(const auto source, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto target, NoiseBuffer(scale.bytes));
  const std::function<void()> contenders[] = {
      [&] { ReadMemory(source->bytes()); },
      [&] { std::memcpy(target->bytes().data(), source->bytes().data(), scale.bytes); },
  };

  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);

  const double read = GigabytesPerSecond(scale.bytes, seconds[0]);
  const double copy = GigabytesPerSecond(scale.bytes, seconds[1]);
  return std::vector<BenchmarkRow>{
      {"memory_read", read, "GB/s", read, "itself: other rows are held against it"},
      {"memcpy", copy, "GB/s", read, "memory read, one thread"},
  };
}

}  // namespace bascule
