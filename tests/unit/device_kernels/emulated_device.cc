#include <cstring>
#include <new>

#include "tests/support/simt/emulator.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

constexpr std::align_val_t kBoundary{256};

// Ends where it ends, so that AddressSanitizer sees a step beyond.
class HostMemory final : public TestMemory {
 public:
  HostMemory(std::size_t size, std::size_t misalignment)
      : bytes_(static_cast<std::byte*>(operator new(misalignment + size, kBoundary))),
        size_(size),
        misalignment_(misalignment) {}
  ~HostMemory() override { operator delete(bytes_, kBoundary); }
  std::byte* data() override { return bytes_ + misalignment_; }
  void Write(std::span<const std::byte> bytes) override {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  std::vector<std::byte> Read() override { return {data(), data() + size_}; }

 private:
  std::byte* const bytes_;
  const std::size_t size_;
  const std::size_t misalignment_;
};

class EmulatedDevice final : public TestDevice {
 public:
  const DeviceKernels& kernels() override { return *bascule_cuda_kernels(); }
  std::unique_ptr<TestMemory> Allocate(std::size_t size, std::size_t misalignment) override {
    return std::make_unique<HostMemory>(size, misalignment);
  }
  Status Run(const std::function<Status(StreamHandle)>& enqueue) override { return enqueue(StreamHandle{}); }
  void SetSeed(std::uint64_t seed) override { simt::SetSeed(seed); }
};

}  // namespace

Result<TestDevice*> OpenTestDevice() {
  static EmulatedDevice device;
  return &device;
}

}  // namespace bascule
