// The words of CUDA C++ that our kernels use, for g++: a kernel becomes a function that the emulator calls once for
// each thread. A word that is missing here does not compile, so the kernels keep to this list.
//
// Thread-safety: a kernel's threads are fibers of the host thread that launched it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/support/simt/emulator.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block runs at a time, so that its threads share what the program has one of. It lies where the emulator finds it.
#define __shared__ static __attribute__((section("simt_shared")))

#define threadIdx (::bascule::simt::ThreadIndex())
#define blockIdx (::bascule::simt::BlockIndex())
#define blockDim (::bascule::simt::BlockSize())
#define gridDim (::bascule::simt::GridSize())

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads() { bascule::simt::BlockBarrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { bascule::simt::Gather(mask, 0); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const int first = bascule::simt::Lane() / width * width;
  const std::uint64_t other = bascule::simt::Gather(mask, bits)[first + lane % width];
  std::memcpy(&value, &other, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return __shfl_sync(mask, value, (bascule::simt::Lane() ^ lanes) % width, width);
}
// A lane past the end keeps its own value.
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int own = bascule::simt::Lane() % width;
  return __shfl_sync(mask, value, own + lanes < width ? own + lanes : own, width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int own = bascule::simt::Lane() % width;
  return __shfl_sync(mask, value, own >= lanes ? own - lanes : own, width);
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  const std::uint64_t* votes = bascule::simt::Gather(mask, predicate ? 1 : 0);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) ballot |= (mask >> lane & 1) != 0 && votes[lane] != 0 ? 1u << lane : 0;
  return ballot;
}

// Launches of several host threads may add to the same place.
template <typename T>
T atomicAdd(T* to, T value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMin(T* to, T value) {
  T seen = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(to, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}

// Hints about caches, which change no result.
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
