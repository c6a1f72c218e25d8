#include <cstring>

#include "benchmarks/kernel_benchmarks.h"
#include "benchmarks/measure.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr DigestKey kKey{{1, 2, 3, 4}};

// What a sender's core does with a large tensor: frame after frame of it into a small ring.
void PackAll(std::span<const std::byte> source, Conversion conversion, std::int64_t item_bytes, std::int64_t wire_bytes,
             std::span<std::byte> ring) {
  const auto frame_elements = static_cast<std::int64_t>(kFrameBytes) / wire_bytes;
  const auto elements = static_cast<std::int64_t>(source.size()) / item_bytes;
  std::size_t at = 0;
  for (std::int64_t first = 0; first < elements; first += frame_elements, at = (at + kFrameBytes) % kRingBytes) {
    const BoxPlace place{first, {1}};
    Use(PackAndDigestOnHost(kKey, BoxShape{1, {frame_elements}}, conversion, static_cast<int>(item_bytes),
                            source.data(), place, place, ring.subspan(at, kFrameBytes))
            .lane[0]);
  }
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunPackBenchmark(const BenchmarkScale& scale) {
  ASSIGN_OR_RETURN(const auto source, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto target, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto ring, NoiseBuffer(kRingBytes));
  const std::span<const std::byte> bytes = source->bytes();
  const std::function<void()> contenders[] = {
      [&] { std::memcpy(target->bytes().data(), bytes.data(), scale.bytes); },
      [&] { ReadMemory(bytes); },
      [&] { PackAll(bytes, Conversion::kNone, 2, 2, ring->bytes()); },
      [&] { PackAll(bytes, Conversion::kF32ToBf16, 4, 2, ring->bytes()); },
  };

  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);

  const auto rate = [&](std::size_t i) { return GigabytesPerSecond(scale.bytes, seconds[i]); };
  return std::vector<BenchmarkRow>{
      {"pack_digest", rate(2), "GB/s", rate(0), "memcpy of the same bytes, one thread"},
      {"pack_f32_to_bf16_digest", rate(3), "GB/s read", rate(1), "memory read, one thread"},
  };
}

}  // namespace bascule
