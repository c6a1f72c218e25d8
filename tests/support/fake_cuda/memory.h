// The memory of fake devices. It is host memory at addresses that mark it as a device's, shared by memfd with the
// processes that open it. Nobody may touch it but the worker that runs the streams, and only while it runs something:
// any other access ends the process, as it does on a machine with a GPU.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "tests/support/fake_cuda/control.h"

namespace bascule::fake_cuda {

enum class Kind { kDevice, kPool, kManaged, kPinned, kOpened };

struct Block {
  std::size_t bytes = 0;
  int fd = -1;  // kOpened: closed again
  std::uint64_t inode = 0;
  int device = 0;  // which of all, not the ordinal
  Kind kind = Kind::kDevice;
};

class Memory {
 public:
  static Memory& Get();

  // Filled with garbage.
  cudaError_t Allocate(std::size_t bytes, int device, Kind kind, void** address) EXCLUDES(mu_);
  cudaError_t Free(void* address, Kind kind) EXCLUDES(mu_);
  // The block that `address` lies in. False when it lies in none.
  bool Find(const void* address, void** base, Block* block) EXCLUDES(mu_);

  cudaError_t Export(void* base, cudaIpcMemHandle_t* handle) EXCLUDES(mu_);
  cudaError_t Open(const cudaIpcMemHandle_t& handle, int device, void** base) EXCLUDES(mu_);
  cudaError_t Close(void* base) EXCLUDES(mu_);

  void Count(FakeCudaCensus& census) EXCLUDES(mu_);

  // While one of these lives, the calling thread is the device.
  class DeviceAccess {
   public:
    DeviceAccess() { Get().Protect(/*open=*/true); }
    ~DeviceAccess() { Get().Protect(/*open=*/false); }
  };

 private:
  Memory();
  void Protect(bool open) EXCLUDES(mu_);
  std::byte* Place(std::size_t bytes) REQUIRES(mu_);
  cudaError_t Map(int fd, std::size_t bytes, void** base) REQUIRES(mu_);
  void Unmap(std::map<std::byte*, Block>::iterator block) REQUIRES(mu_);

  const std::size_t device_bytes_;
  Mutex mu_;
  std::byte* region_ GUARDED_BY(mu_) = nullptr;
  bool open_ GUARDED_BY(mu_) = false;
  std::map<std::byte*, Block> blocks_ GUARDED_BY(mu_);
};

}  // namespace bascule::fake_cuda
