// Where the parity tests run kernels: the emulator in one program, a GPU in another, with the same tests.
//
// Thread-safety: confined to the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device_kernels.h"

namespace bascule {

// Memory of the device, as large as it is, that begins `misalignment` bytes after a 256-byte boundary.
class TestMemory {
 public:
  virtual ~TestMemory() = default;
  virtual std::byte* data() = 0;
  virtual void Write(std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> Read() = 0;
};

class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual const DeviceKernels& kernels() = 0;
  virtual std::unique_ptr<TestMemory> Allocate(std::size_t size, std::size_t misalignment) = 0;
  // Enqueues on a stream and waits for it.
  virtual Status Run(const std::function<Status(StreamHandle)>& enqueue) = 0;
  // What a failure needs to happen again. Later launches draw from it.
  virtual void SetSeed(std::uint64_t) {}
};

// The one device of this program; lives until it ends.
//
// Unavailable "no_cuda_device"  this machine has none
Result<TestDevice*> OpenTestDevice();

class DeviceKernelTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<TestDevice*> device = OpenTestDevice();
    if (device.status().reason() == "no_cuda_device") GTEST_SKIP() << device.status().ToString();
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    device_ = *device;
  }

  const DeviceKernels& kernels() { return device_->kernels(); }
  void SetSeed(std::uint64_t seed) { device_->SetSeed(seed); }
  std::unique_ptr<TestMemory> Upload(std::span<const std::byte> bytes, std::size_t misalignment = 0) {
    auto memory = device_->Allocate(bytes.size(), misalignment);
    memory->Write(bytes);
    return memory;
  }
  template <typename T>
  std::unique_ptr<TestMemory> UploadItems(std::span<const T> items) {
    return Upload(std::as_bytes(items));
  }
  template <typename T>
  std::vector<T> DownloadItems(TestMemory& memory) {
    const std::vector<std::byte> bytes = memory.Read();
    std::vector<T> items(bytes.size() / sizeof(T));
    if (!items.empty()) std::memcpy(items.data(), bytes.data(), items.size() * sizeof(T));
    return items;
  }
  // Calls kernel(arguments..., stream) and waits.
  template <typename Kernel, typename... Arguments>
  void Run(Kernel kernel, const Arguments&... arguments) {
    const Status status = device_->Run([&](StreamHandle stream) { return kernel(arguments..., stream); });
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

 private:
  TestDevice* device_ = nullptr;
};

}  // namespace bascule
