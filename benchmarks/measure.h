// Medians of things that take turns, so that a slow minute of the machine is slow for all of them, and the memory they
// work on.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/buffer.h"

namespace bascule {

// Does its work and says how many seconds of it count.
using Measured = std::function<Result<double>()>;

// Runs each of `contenders` once without counting it, then `rounds` times in turn. The median seconds of each, or the
// first error.
Result<std::vector<double>> MedianSeconds(std::span<const Measured> contenders, int rounds);
// As above, where all of the work counts and none can fail.
std::vector<double> MedianSeconds(std::span<const std::function<void()>> contenders, int rounds);

double SecondsOf(const std::function<void()>& work);
// The p-quantile (0 < p <= 1) of at least one value: the smallest that p of them do not exceed.
double QuantileOf(std::vector<double> values, double p);

inline double GigabytesPerSecond(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

// A line of /proc/self/status ("VmRSS:", or "VmHWM:", its peak since ForgetPeakMemory), in MB.
double ProcessMemory(std::string_view key);
void ForgetPeakMemory();

// Keeps the compiler from dropping work whose result nobody reads.
void Use(std::uint64_t value);

// Prefaulted host memory full of noise, too large for any cache near a core.
//
// ResourceExhausted "device_memory"
Result<std::unique_ptr<DeviceBuffer>> NoiseBuffer(std::size_t size);

// Reads all of `bytes` and nothing else: the limit of whatever has to read them.
void ReadMemory(std::span<const std::byte> bytes);

// Does about so many fp32 multiply-adds in registers, and nothing else: the limit of a matrix product in fp32.
void MultiplyAdd(std::int64_t count);

// One core's sync as its kernels see it: frames of this size pass through a ring that stays in the shared cache.
inline constexpr std::size_t kFrameBytes = std::size_t{1} << 20;
inline constexpr std::size_t kRingBytes = 4 * kFrameBytes;

}  // namespace bascule
