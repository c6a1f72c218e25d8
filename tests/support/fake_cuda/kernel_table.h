// The seam between the fake CUDA runtime and the kernels it runs. A library of the same .cu files, compiled for the
// CPU, shows one function:
//
//   extern "C" const bascule::FakeKernel* bascule_fake_kernel(const char* mangled_name);
//
// `mangled_name` is what nvcc registered the kernel under: the mangled name of the __global__ function, which a C++
// compiler gives the same one, as long as it lies in a named namespace. Null where there is no such kernel.
//
// The runtime opens that library (BASCULE_FAKE_CUDA_KERNELS) when the first kernel is launched, and calls `run` on the
// worker thread of its streams, one at a time, with copies of the arguments as they were at the launch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bascule {

struct FakeLaunch {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::size_t shared_bytes = 0;
};

struct FakeKernel {
  // Of each parameter, in order: what the runtime copies at the launch.
  const std::size_t* argument_bytes = nullptr;
  std::size_t argument_count = 0;
  // Runs every thread of the grid and returns when all are done. `kernel` is this one.
  void (*run)(const FakeKernel& kernel, const FakeLaunch& launch, void** arguments) = nullptr;
  const void* own = nullptr;  // the library's
};

}  // namespace bascule
