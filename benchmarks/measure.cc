#include "benchmarks/measure.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/clock.h"
#include "device/host/host_memory.h"

namespace bascule {

Result<std::vector<double>> MedianSeconds(std::span<const Measured> contenders, int rounds) {
  std::vector<std::vector<double>> seconds(contenders.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      ASSIGN_OR_RETURN(const double taken, contenders[i]());
      if (round >= 0) seconds[i].push_back(taken);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : seconds) medians.push_back(QuantileOf(std::move(each), 0.5));
  return medians;
}

std::vector<double> MedianSeconds(std::span<const std::function<void()>> contenders, int rounds) {
  std::vector<Measured> measured;
  for (const std::function<void()>& contender : contenders) {
    measured.push_back([&contender]() -> Result<double> { return SecondsOf(contender); });
  }
  return *MedianSeconds(measured, rounds);
}

double SecondsOf(const std::function<void()>& work) {
  const TimePoint start = Clock::Real().Now();
  work();
  return std::chrono::duration<double>(Clock::Real().Now() - start).count();
}

double QuantileOf(std::vector<double> values, double p) {
  CHECK(!values.empty() && p > 0 && p <= 1);
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil(p * static_cast<double>(values.size()))) - 1;
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<std::size_t>(rank)];
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
#define BASCULE_WIDEST_MULTIPLY_ADDS [[gnu::target_clones("avx512f", "arch=haswell", "default")]]
#else
#define BASCULE_WIDEST_MULTIPLY_ADDS
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

BASCULE_WIDEST_MULTIPLY_ADDS void MultiplyAdd(std::int64_t count) {
  using Lanes = float __attribute__((vector_size(64)));
  constexpr int kSums = 12;  // enough that none waits for the one before, few enough for the registers
  const Lanes factor = Lanes{} + 0.5f;
  Lanes sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Lanes{} + static_cast<float>(i);  // equal sums would be computed once
  for (std::int64_t done = 0; done < count; done += kSums * 16) {
#pragma GCC unroll 12
    for (Lanes& sum : sums) sum = sum * factor + factor;
  }
  for (const Lanes& sum : sums) Use(static_cast<std::uint64_t>(sum[0]));
}

double ProcessMemory(std::string_view key) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) return std::strtod(line.c_str() + key.size(), nullptr) * 1024 / 1e6;
  }
  return 0;
}

void ForgetPeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace bascule
