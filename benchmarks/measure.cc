#include "benchmarks/measure.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/clock.h"
#include "device/host/host_memory.h"

namespace bascule {

std::vector<double> MedianSeconds(std::span<const std::function<void()>> contenders, int rounds) {
  std::vector<std::vector<double>> seconds(contenders.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const TimePoint start = Clock::Real().Now();
      contenders[i]();
      const Duration taken = Clock::Real().Now() - start;
      if (round >= 0) seconds[i].push_back(std::chrono::duration<double>(taken).count());
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : seconds) {
    const auto middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
    std::nth_element(each.begin(), middle, each.end());
    medians.push_back(*middle);
  }
  return medians;
}

void Use(std::uint64_t value) { asm volatile("" : : "r"(value)); }

Result<std::unique_ptr<DeviceBuffer>> NoiseBuffer(std::size_t size) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, HostMemory().Allocate(size));
  const std::span<std::byte> bytes = buffer->bytes();
  std::uint64_t noise = 1;
  for (std::size_t at = 0; at + sizeof(noise) <= bytes.size(); at += sizeof(noise)) {
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t mixed = noise ^ (noise >> 31);
    std::memcpy(bytes.data() + at, &mixed, sizeof(mixed));
  }
  return buffer;
}

#if defined(__x86_64__)
#define BASCULE_WIDEST_LOADS [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define BASCULE_WIDEST_LOADS
#endif

BASCULE_WIDEST_LOADS void ReadMemory(std::span<const std::byte> bytes) {
  using Line = std::uint64_t __attribute__((vector_size(64)));
  using LineInMemory = std::uint64_t __attribute__((vector_size(64), aligned(1), may_alias));
  const auto* const lines = reinterpret_cast<const LineInMemory*>(bytes.data());
  const std::size_t line_count = bytes.size() / sizeof(Line);
  Line a{}, b{}, c{}, d{};  // four sums, so that no load waits for the one before
  for (std::size_t i = 0; i + 4 <= line_count; i += 4) {
    a |= lines[i];
    b |= lines[i + 1];
    c |= lines[i + 2];
    d |= lines[i + 3];
  }
  const Line all = (a | b) | (c | d);
  for (int i = 0; i < 8; ++i) Use(all[i]);
}

}  // namespace bascule
