#include "tests/support/fake_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/status.h"
#include "tests/support/fake_cuda/devices.h"
#include "tests/support/fake_cuda/ipc.h"

namespace bascule::fake_cuda {
namespace {

constexpr std::size_t kRegionBytes = std::size_t{64} << 30;
constexpr std::size_t kPageBytes = std::size_t{2} << 20;
constexpr int kGarbage = 0xa5;

std::size_t DeviceBytes() {
  const char* const bytes = std::getenv("BASCULE_FAKE_CUDA_MEMORY");
  return bytes == nullptr ? std::size_t{1} << 30 : std::strtoull(bytes, nullptr, 10);
}

bool IsGuarded(const Block& block) { return block.kind != Kind::kPinned && block.kind != Kind::kManaged; }

}  // namespace

Memory& Memory::Get() {
  static auto* const memory = new Memory;
  return *memory;
}

Memory::Memory() : device_bytes_(DeviceBytes()) {
  const MutexLock lock(mu_);
  void* const region = mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(region != MAP_FAILED);
  region_ = static_cast<std::byte*>(region);
}

cudaError_t Memory::Allocate(std::size_t bytes, int device, Kind kind, void** address) {
  const MutexLock lock(mu_);
  std::size_t used = 0;
  for (const auto& [base, block] : blocks_) {
    if (block.device == device && block.kind == Kind::kDevice) used += block.bytes;
  }
  if (bytes > device_bytes_ || used > device_bytes_ - bytes) return cudaErrorMemoryAllocation;
  const int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return cudaErrorMemoryAllocation;
  const cudaError_t mapped = Map(fd, bytes, address);
  if (mapped != cudaSuccess) return mapped;
  std::memset(*address, kGarbage, bytes);
  const Block block{.bytes = bytes, .fd = fd, .device = device, .kind = kind};
  blocks_.emplace(static_cast<std::byte*>(*address), block);
  if (IsGuarded(block) && !open_) mprotect(*address, bytes, PROT_NONE);
  return cudaSuccess;
}

// Blocks never touch: what runs over the end of one lands in no memory at all.
std::byte* Memory::Place(std::size_t bytes) {
  std::byte* at = region_ + kPageBytes;
  for (const auto& [base, block] : blocks_) {
    if (static_cast<std::size_t>(base - at) >= bytes + kPageBytes) break;
    at = base + (block.bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes;
  }
  return at + bytes + kPageBytes <= region_ + kRegionBytes ? at : nullptr;
}

cudaError_t Memory::Map(int fd, std::size_t bytes, void** base) {
  std::byte* const place = Place(bytes);
  if (place == nullptr) return cudaErrorMemoryAllocation;
  *base = mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  return *base == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}

void Memory::Unmap(std::map<std::byte*, Block>::iterator block) {
  CHECK(mmap(block->first, block->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == block->first);
  if (block->second.fd >= 0) close(block->second.fd);
  blocks_.erase(block);
}

cudaError_t Memory::Free(void* address, Kind kind) {
  const MutexLock lock(mu_);
  const auto block = blocks_.find(static_cast<std::byte*>(address));
  if (block == blocks_.end() || (block->second.kind == Kind::kPinned) != (kind == Kind::kPinned) ||
      block->second.kind == Kind::kOpened) {
    return cudaErrorInvalidValue;
  }
  Unmap(block);
  return cudaSuccess;
}

bool Memory::Find(const void* address, void** base, Block* block) {
  const MutexLock lock(mu_);
  auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
  auto next = blocks_.upper_bound(at);
  if (next == blocks_.begin()) return false;
  const auto& [start, found] = *--next;
  if (static_cast<std::size_t>(at - start) >= found.bytes) return false;
  *base = start;
  *block = found;
  return true;
}

cudaError_t Memory::Export(void* base, cudaIpcMemHandle_t* handle) {
  const MutexLock lock(mu_);
  const auto block = blocks_.find(static_cast<std::byte*>(base));
  if (block == blocks_.end() || block->second.kind != Kind::kDevice) return cudaErrorInvalidValue;
  WriteName(NameOf(block->second.fd, block->second.device), *handle);
  return cudaSuccess;
}

cudaError_t Memory::Open(const cudaIpcMemHandle_t& handle, int device, void** base) {
  const IpcName name = ReadName(handle);
  if (name.process == getpid()) return cudaErrorDeviceUninitialized;
  const UniqueFd fd = OpenNamed(name);
  struct stat found {};
  if (!fd.valid() || fstat(fd.get(), &found) != 0) return cudaErrorInvalidResourceHandle;
  if (!AreNear(name.device, device)) return cudaErrorPeerAccessUnsupported;
  const MutexLock lock(mu_);
  for (const auto& [start, block] : blocks_) {
    // Older drivers answer so to a second opening.
    const bool is_open = block.kind == Kind::kOpened && block.inode == name.inode && block.device == device;
    if (is_open) return cudaErrorAlreadyMapped;
  }
  const auto bytes = static_cast<std::size_t>(found.st_size);
  const cudaError_t mapped = Map(fd.get(), bytes, base);
  if (mapped != cudaSuccess) return mapped;
  blocks_.emplace(static_cast<std::byte*>(*base),
                  Block{.bytes = bytes, .inode = name.inode, .device = device, .kind = Kind::kOpened});
  if (!open_) mprotect(*base, bytes, PROT_NONE);
  return cudaSuccess;
}

cudaError_t Memory::Close(void* base) {
  const MutexLock lock(mu_);
  const auto block = blocks_.find(static_cast<std::byte*>(base));
  if (block == blocks_.end() || block->second.kind != Kind::kOpened) return cudaErrorInvalidValue;
  Unmap(block);
  return cudaSuccess;
}

void Memory::Count(FakeCudaCensus& census) {
  const MutexLock lock(mu_);
  for (const auto& [base, block] : blocks_) {
    (block.kind == Kind::kPinned   ? census.pinned_allocations
     : block.kind == Kind::kOpened ? census.opened_allocations
                                   : census.allocations)++;
  }
}

void Memory::Protect(bool open) {
  const MutexLock lock(mu_);
  open_ = open;
  for (const auto& [base, block] : blocks_) {
    if (IsGuarded(block)) mprotect(base, block.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

}  // namespace bascule::fake_cuda
