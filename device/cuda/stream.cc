#include "device/cuda/stream.h"

#include <cuda_runtime_api.h>

#include "device/cuda/error.h"
#include "device/cuda/event.h"

namespace bascule {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(cudaGraphExec_t graph, const DeviceDescription& device) : graph_(graph), device_(device) {}
  ~CudaGraph() override {
    const UseDevice use(device_.ordinal);
    static_cast<void>(CudaStatus(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy"));
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t get() const { return graph_; }

 private:
  const cudaGraphExec_t graph_;
  const DeviceDescription& device_;
};

class CudaStream final : public DeviceStream {
 public:
  CudaStream(cudaStream_t stream, const DeviceDescription& device) : stream_(stream), device_(device) {}
  ~CudaStream() override {
    const UseDevice use(device_.ordinal);
    static_cast<void>(CudaStatus(cudaStreamDestroy(stream_), "cudaStreamDestroy"));
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  StreamHandle handle() const override { return {stream_}; }

  Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    CHECK(to.size() == from.size());
    if (to.empty()) return OkStatus();
    USE_DEVICE(device_);
    RETURN_IF_ERROR(CheckReachable(to.data()));
    RETURN_IF_ERROR(CheckReachable(from.data()));
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync, device_, to.data(), from.data(), to.size(), cudaMemcpyDefault, stream_);
    return OkStatus();
  }

  Status Fill(std::span<std::byte> target, std::byte value) override {
    if (target.empty()) return OkStatus();
    USE_DEVICE(device_);
    RETURN_IF_ERROR(CheckReachable(target.data()));
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync, device_, target.data(), std::to_integer<int>(value), target.size(), stream_);
    return OkStatus();
  }

  Status Record(DeviceEvent& event) override {
    USE_DEVICE(device_);
    RETURN_IF_CUDA_ERROR(cudaEventRecord, device_, static_cast<CudaEvent&>(event).get(), stream_);
    return OkStatus();
  }

  Status WaitFor(DeviceEvent& event) override {
    USE_DEVICE(device_);
    RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent, device_, stream_, static_cast<CudaEvent&>(event).get(), 0);
    return OkStatus();
  }

  Status BeginCapture() override {
    USE_DEVICE(device_);
    // Other threads allocate and wait while this one captures.
    RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture, device_, stream_, cudaStreamCaptureModeThreadLocal);
    return OkStatus();
  }

  Result<std::unique_ptr<DeviceGraph>> EndCapture() override {
    const UseDevice use(device_.ordinal);
    cudaGraph_t noted = nullptr;
    RETURN_IF_CUDA_ERROR(cudaStreamEndCapture, device_, stream_, &noted);
    cudaGraphExec_t graph = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&graph, noted, 0);
    static_cast<void>(CudaStatus(cudaGraphDestroy(noted), "cudaGraphDestroy"));
    RETURN_IF_ERROR(CudaStatus(made, "cudaGraphInstantiate", device_));
    return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(graph, device_));
  }

  Status Launch(DeviceGraph& graph) override {
    USE_DEVICE(device_);
    RETURN_IF_CUDA_ERROR(cudaGraphLaunch, device_, static_cast<CudaGraph&>(graph).get(), stream_);
    return OkStatus();
  }

 private:
  // CUDA would take pageable memory, and then copy through a buffer of its own while the caller waits.
  Status CheckReachable(const void* address) const {
    cudaPointerAttributes attributes{};
    RETURN_IF_CUDA_ERROR(cudaPointerGetAttributes, device_, &attributes, address);
    if (attributes.type != cudaMemoryTypeUnregistered) return OkStatus();
    return Status::InvalidArgument(
        "not_pinned", fmt::format("device {} {}: memory at {} is neither a device's nor pinned", device_.ordinal,
                                  device_.uuid.ToString(), address));
  }

  const cudaStream_t stream_;
  const DeviceDescription& device_;
};

}  // namespace

Result<std::unique_ptr<DeviceStream>> MakeCudaStream(StreamPriority priority, const DeviceDescription& device) {
  USE_DEVICE(device);
  int least = 0;
  int greatest = 0;  // the smaller number
  RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange, device, &least, &greatest);
  const int level = priority == StreamPriority::kLow    ? least
                    : priority == StreamPriority::kHigh ? greatest
                                                        : (least + greatest) / 2;
  cudaStream_t stream = nullptr;
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority, device, &stream, cudaStreamNonBlocking, level);
  return std::unique_ptr<DeviceStream>(std::make_unique<CudaStream>(stream, device));
}

}  // namespace bascule
