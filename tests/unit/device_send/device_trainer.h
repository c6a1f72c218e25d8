// A ShardedTrainer whose tensors lie on the fake device: a stream of its own writes them there, and marks each version
// with an event.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/device_kernels.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/scripted_engine/sharded_trainer.h"
#include "trainer_side/device_copy.h"

namespace bascule {

inline std::shared_ptr<WeightDevice> FakeWeightDevice(int ordinal = 0) {
  return std::make_shared<WeightDevice>(FakeDevice(ordinal), *LoadDeviceKernels().value());
}

class DeviceTrainer {
 public:
  explicit DeviceTrainer(int trainer_ranks, std::int64_t rows, int ordinal = 0)
      : on_host_(trainer_ranks, rows),
        device_(FakeWeightDevice(ordinal)),
        host_(on_host_.Source()),
        source_(CopyToDevice(host_, device_, Deadline::At(TimePoint::max())).value()),
        stream_(device_->device().MakeStream(StreamPriority::kNormal).value()),
        written_(device_->device().MakeEvent().value()) {}

  const ShardedTrainer& on_host() const { return on_host_; }
  const TensorSource& source() const { return source_; }
  WeightDevice& device() const { return *device_; }
  DeviceEvent& written() const { return *written_; }

  // New values, which the trainer's stream writes to the device some time later; `written` is behind them.
  void Fill(std::uint32_t seed) {
    on_host_.Fill(seed);
    std::vector<std::unique_ptr<DeviceBuffer>> values;
    for (std::size_t rank = 0; rank < host_.layout().ranks.size(); ++rank) {
      const std::vector<LocalTensor>& tensors = host_.layout().ranks[rank].tensors;
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const auto bytes = static_cast<std::size_t>(tensors[t].Bytes());
        const int r = static_cast<int>(rank), tensor = static_cast<int>(t);
        values.push_back(device_->device().pinned_memory().Allocate(bytes).value());
        if (bytes > 0) std::memcpy(values.back()->bytes().data(), host_.Base(r, tensor), bytes);
        CHECK(stream_->Copy({const_cast<std::byte*>(source_.Base(r, tensor)), bytes}, values.back()->bytes()).ok());
      }
    }
    CHECK(stream_->Record(*written_).ok());
    values_.swap(values);
    before_.push_back(std::move(values));
  }
  // Until then what Fill copies from stays.
  void Settle() {
    CHECK(Drain(device_->device(), *stream_).ok());
    before_.clear();
  }

 private:
  ShardedTrainer on_host_;
  std::shared_ptr<WeightDevice> device_;
  const TensorSource host_;
  const TensorSource source_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> written_;
  std::vector<std::unique_ptr<DeviceBuffer>> values_;
  std::vector<std::vector<std::unique_ptr<DeviceBuffer>>> before_;
};

}  // namespace bascule
