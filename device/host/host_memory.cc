#include "device/host/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

namespace bascule {
namespace {

// A page of this size spares a 1 GB tensor a quarter of a million TLB entries.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, std::size_t size) : address_(static_cast<std::byte*>(address)), size_(size) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (address_ != nullptr) munmap(address_, size_);
  }
  std::byte* address() const { return address_; }

 private:
  std::byte* address_ = nullptr;
  std::size_t size_ = 0;
};

class HostBuffer : public DeviceBuffer {
 public:
  HostBuffer(Mapping mapping, std::span<std::byte> bytes) : mapping_(std::move(mapping)), bytes_(bytes) {}
  std::span<std::byte> bytes() override { return bytes_; }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  Mapping mapping_;
  std::span<std::byte> bytes_;
};

Status OutOfMemory(std::size_t size, int error) {
  return Status::ResourceExhausted(
      "device_memory", fmt::format("device=host bytes={}: {}", size, std::generic_category().message(error)));
}

// Gives every page its memory now. Returns 0 or an errno.
int Prefault(std::span<std::byte> bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // EINVAL: a kernel before 5.14
#endif
  const std::size_t page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes.size(); at += page_bytes) {
    *reinterpret_cast<volatile std::byte*>(bytes.data() + at) = std::byte{0};
  }
  return 0;
}

class HostDeviceMemory : public DeviceMemory {
 public:
  Result<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t size) override {
    if (size == 0)
      return std::unique_ptr<DeviceBuffer>(std::make_unique<HostBuffer>(Mapping(), std::span<std::byte>()));
    // One huge page more than asked for, so that the bytes can begin on a huge page; the rest stays untouched.
    const std::size_t slack = size >= kHugePageBytes ? kHugePageBytes : 0;
    if (size > std::numeric_limits<std::size_t>::max() - slack) return OutOfMemory(size, ENOMEM);
    void* address = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return OutOfMemory(size, errno);
    Mapping mapping(address, size + slack);

    const auto misplaced = reinterpret_cast<std::uintptr_t>(address) % kHugePageBytes;
    const std::size_t skip = slack == 0 || misplaced == 0 ? 0 : kHugePageBytes - misplaced;
    const std::span<std::byte> bytes(mapping.address() + skip, size);
    // Only a hint: a kernel without huge pages refuses it, and small pages serve as well.
    static_cast<void>(madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE));
    if (const int error = Prefault(bytes); error != 0) return OutOfMemory(size, error);
    return std::unique_ptr<DeviceBuffer>(std::make_unique<HostBuffer>(std::move(mapping), bytes));
  }
  std::string_view name() const override { return "host"; }
};

}  // namespace

DeviceMemory& HostMemory() {
  static HostDeviceMemory memory;
  return memory;
}

}  // namespace bascule
