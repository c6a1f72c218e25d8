#include <cstring>

#include "benchmarks/kernel_benchmarks.h"
#include "benchmarks/measure.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr DigestKey kKey{{1, 2, 3, 4}};
constexpr int kItemBytes = 2;
constexpr auto kFrameElements = static_cast<std::int64_t>(kFrameBytes) / kItemBytes;

// What a receiver's core does with a large tensor: frame after frame of a small ring to its place.
template <typename Unpack>
void UnpackAll(std::size_t bytes, std::span<const std::byte> ring, Unpack&& unpack) {
  const auto elements = static_cast<std::int64_t>(bytes) / kItemBytes;
  std::size_t at = 0;
  for (std::int64_t first = 0; first < elements; first += kFrameElements, at = (at + kFrameBytes) % kRingBytes) {
    Use(unpack(BoxShape{1, {kFrameElements}}, ring.subspan(at, kFrameBytes), BoxPlace{first, {1}}).lane[0]);
  }
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunUnpackBenchmark(const BenchmarkScale& scale) {
  ASSIGN_OR_RETURN(const auto source, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto target, NoiseBuffer(scale.bytes));
  ASSIGN_OR_RETURN(const auto ring, NoiseBuffer(kRingBytes));
  std::byte* const slot = target->bytes().data();
  const auto in_one_pass = [&](const BoxShape& shape, std::span<const std::byte> frame, const BoxPlace& place) {
    return UnpackAndDigestOnHost(kKey, shape, kItemBytes, frame, slot, place, place);
  };
  const auto one_after_the_other = [&](const BoxShape& shape, std::span<const std::byte> frame, const BoxPlace& place) {
    UnpackOnHost(shape, kItemBytes, frame, slot, place);
    return DigestBoxOnHost(kKey, shape, kItemBytes, slot, place, place);
  };
  const std::function<void()> contenders[] = {
      [&] { std::memcpy(slot, source->bytes().data(), scale.bytes); },
      [&] { UnpackAll(scale.bytes, ring->bytes(), in_one_pass); },
      [&] { UnpackAll(scale.bytes, ring->bytes(), one_after_the_other); },
  };

  const std::vector<double> seconds = MedianSeconds(contenders, scale.rounds);

  const auto rate = [&](std::size_t i) { return GigabytesPerSecond(scale.bytes, seconds[i]); };
  return std::vector<BenchmarkRow>{
      {"unpack_digest", rate(1), "GB/s", rate(0), "memcpy of the same bytes, one thread"},
      {"unpack_then_digest", rate(2), "GB/s", rate(0), "memcpy of the same bytes, one thread"},
  };
}

}  // namespace bascule
