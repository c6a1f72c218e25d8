#include <cstring>

#include "base/clock.h"
#include "device/backend.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

constexpr std::size_t kBoundary = 256;
constexpr auto kBound = std::chrono::seconds(60);

// What runs on the first device of this machine, in the order of one stream.
class Gpu final : public TestDevice {
 public:
  static Result<std::unique_ptr<Gpu>> Open() {
    ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
    ASSIGN_OR_RETURN(Device* const device, backend->Open(0));
    auto* const entry = reinterpret_cast<decltype(&bascule_cuda_kernels)>(backend->Part("kernels"));
    if (entry == nullptr) return Status::Internal("no_kernels", "the module has no part of that name");
    ASSIGN_OR_RETURN(auto stream, device->MakeStream(StreamPriority::kNormal));
    ASSIGN_OR_RETURN(auto event, device->MakeEvent());
    return std::make_unique<Gpu>(*device, *entry(), std::move(stream), std::move(event));
  }
  Gpu(Device& device, const DeviceKernels& kernels, std::unique_ptr<DeviceStream> stream,
      std::unique_ptr<DeviceEvent> event)
      : device_(device), kernels_(kernels), stream_(std::move(stream)), event_(std::move(event)) {}

  const DeviceKernels& kernels() override { return kernels_; }
  std::unique_ptr<TestMemory> Allocate(std::size_t size, std::size_t misalignment) override;
  Status Run(const std::function<Status(StreamHandle)>& enqueue) override { return Finish(enqueue(stream_->handle())); }

  // Through pinned memory, as the stream wants it.
  void Copy(std::span<std::byte> to, std::span<const std::byte> from) { CHECK(Finish(stream_->Copy(to, from)).ok()); }
  // `size` bytes of pinned memory, until the next call: a device takes a millisecond to give and to take back such.
  std::span<std::byte> Pinned(std::size_t size) {
    if (pinned_ == nullptr || pinned_->bytes().size() < size) pinned_ = device_.pinned_memory().Allocate(size).value();
    return pinned_->bytes().first(size);
  }
  Device& device() { return device_; }

 private:
  Status Finish(Status enqueued) {
    RETURN_IF_ERROR(enqueued);
    RETURN_IF_ERROR(stream_->Record(*event_));
    return AwaitEvent(*event_, Deadline::After(Clock::Real(), kBound), Clock::Real());
  }

  Device& device_;
  const DeviceKernels& kernels_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  std::unique_ptr<DeviceBuffer> pinned_;
};

class GpuMemory final : public TestMemory {
 public:
  GpuMemory(Gpu& gpu, std::size_t size, std::size_t misalignment)
      : gpu_(gpu),
        buffer_(gpu.device().memory().Allocate(size + kBoundary).value()),
        bytes_(buffer_->bytes().subspan(misalignment, size)) {}
  std::byte* data() override { return bytes_.data(); }
  void Write(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return;
    const std::span<std::byte> staged = gpu_.Pinned(bytes.size());
    std::memcpy(staged.data(), bytes.data(), bytes.size());
    gpu_.Copy(bytes_, staged);
  }
  std::vector<std::byte> Read() override {
    if (bytes_.empty()) return {};
    const std::span<std::byte> read = gpu_.Pinned(bytes_.size());
    gpu_.Copy(read, bytes_);
    return {read.begin(), read.end()};
  }

 private:
  Gpu& gpu_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::span<std::byte> bytes_;
};

std::unique_ptr<TestMemory> Gpu::Allocate(std::size_t size, std::size_t misalignment) {
  return std::make_unique<GpuMemory>(*this, size, misalignment);
}

}  // namespace

Result<TestDevice*> OpenTestDevice() {
  static Result<std::unique_ptr<Gpu>> gpu = Gpu::Open();
  if (!gpu.ok()) return gpu.status();
  return gpu.value().get();
}

}  // namespace bascule
