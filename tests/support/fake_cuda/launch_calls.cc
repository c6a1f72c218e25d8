// Kernels: what nvcc's code says at start, the launches, and the host versions that run.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/devices.h"
#include "tests/support/fake_cuda/kernel_table.h"
#include "tests/support/fake_cuda/library_seam.h"
#include "tests/support/fake_cuda/memory.h"
#include "tests/support/fake_cuda/runtime_internal.h"
#include "tests/support/fake_cuda/stream_calls_internal.h"
#include "tests/support/fake_cuda/streams.h"

using namespace bascule::fake_cuda;
using bascule::FakeKernel;
using bascule::FakeLaunch;
using bascule::MutexLock;

namespace {

// nvcc's stub of a kernel, and the mangled name that it was registered under. Never destroyed: modules register before
// main() begins and ask until the end.
bascule::Mutex names_mu;
std::map<const void*, std::string>& Names() REQUIRES(names_mu) {
  static auto* const names = new std::map<const void*, std::string>;
  return *names;
}
std::atomic<int> launches = 0;

using KernelTable = const FakeKernel* (*)(const char*);

KernelTable OpenTable() {
  const char* const path = std::getenv("BASCULE_FAKE_CUDA_KERNELS");
  void* const library = dlopen(path == nullptr ? "" : path, RTLD_NOW | RTLD_LOCAL);
  void* const table = path == nullptr || library == nullptr ? nullptr : dlsym(library, "bascule_fake_kernel");
  if (table == nullptr) std::fprintf(stderr, "fake cuda: no kernels at BASCULE_FAKE_CUDA_KERNELS=%s\n", path);
  return reinterpret_cast<KernelTable>(table);
}

const FakeKernel* Find(const void* stub) {
  static const KernelTable table = OpenTable();
  const MutexLock lock(names_mu);
  const auto name = Names().find(stub);
  return table == nullptr || name == Names().end() ? nullptr : table(name->second.c_str());
}

// The arguments as they are now; their owner may change them once the launch has returned.
struct Arguments {
  std::vector<std::vector<std::byte>> values;
  Arguments(const FakeKernel& kernel, void** from) {
    for (std::size_t i = 0; i < kernel.argument_count; ++i) {
      const auto* const bytes = static_cast<const std::byte*>(from[i]);
      values.emplace_back(bytes, bytes + kernel.argument_bytes[i]);
    }
  }
};

cudaError_t Launch(const void* stub, const FakeLaunch& shape, void** from, cudaStream_t stream, bool lost) {
  const FakeKernel* const kernel = Find(stub);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (Streams::Get().DeviceOf(stream) != CurrentDevice()) return cudaErrorInvalidResourceHandle;
  ++launches;
  return EnqueueWork(stream, lost, [kernel, shape, arguments = Arguments(*kernel, from)]() mutable {
    std::vector<void*> addresses;
    for (std::vector<std::byte>& value : arguments.values) addresses.push_back(value.data());
    kernel->run(*kernel, shape, addresses.data());
  });
}

FakeLaunch ShapeOf(dim3 grid, dim3 block, std::size_t shared_bytes) {
  return {.grid = {grid.x, grid.y, grid.z}, .block = {block.x, block.y, block.z}, .shared_bytes = shared_bytes};
}

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> configurations;

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return static_cast<void**>(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const MutexLock lock(names_mu);
  Names()[stub] = name;
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return cudaErrorInvalidConfiguration;
  const CallConfiguration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                               cudaStream_t stream) {
  FAKE_CUDA_CALL();
  return Remember(Launch(kernel, ShapeOf(grid, block, shared_bytes), arguments, stream, lost));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  FAKE_CUDA_CALL();
  const FakeLaunch shape = ShapeOf(config->gridDim, config->blockDim, config->dynamicSmemBytes);
  return Remember(Launch(stub, shape, arguments, config->stream, lost));
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  FAKE_CUDA_CALL();
  return cudaSuccess;
}

void bascule_fake_cuda_census(bascule::FakeCudaCensus* census) {
  *census = {};
  Memory::Get().Count(*census);
  census->streams = Streams::Get().Count();
  census->events = CountEvents();
  census->graphs = Captures::Get().Count();
  census->launches = launches;
  census->set_up = CountSetUp();
}

void bascule_fake_cuda_forget_set_up() { ForgetSetUp(); }

cudaError_t bascule_fake_cuda_enqueue(cudaStream_t stream, const std::function<void()>& run) {
  return EnqueueWork(stream, /*lost=*/false, run);
}

cudaError_t bascule_fake_cuda_enqueue_work(cudaStream_t stream, const Work& work) {
  return EnqueueWork(stream, /*lost=*/false, work);
}

bool bascule_fake_cuda_captures(cudaStream_t stream) { return Captures::Get().IsCapturing(stream); }

int bascule_fake_cuda_take_fault(const char* function) {
  const int fault = Faults::Get().Take(function);
  return fault == bascule::FakeCuda::kLost ? 0 : fault;
}

void bascule_fake_cuda_seed(std::uint64_t seed) { Streams::Get().SetSeed(seed); }

int bascule_fake_cuda_take_back_faults() { return Faults::Get().TakeBack(); }

void bascule_fake_cuda_fail(const char* function, int nth, int error) { Faults::Get().Add(function, nth, error); }

}  // extern "C"
