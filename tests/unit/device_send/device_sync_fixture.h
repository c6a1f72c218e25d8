// A trainer whose tensors lie on the fake device, and a receiver with its slots in host memory or on that device, each
// as it ships.
#pragma once

#include <memory>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "tests/e2e/sync/sync_fixture.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/unit/device_send/device_trainer.h"

namespace bascule {

class DeviceSyncFixture : public SyncFixture {
 protected:
  // Engine and trainer on one device, and frames too.
  void UseCudaIpc(int engine_ranks) {
    StopListening();
    listener_ = CudaIpcListener::Create(directory_.File("engine"), FakeDevice()).value();
    dialer_ = std::make_unique<CudaIpcDialer>(FakeDevice());
    receiver_options_.devices.assign(static_cast<std::size_t>(engine_ranks), &FakeDevice());
  }
  void StartDeviceTrainer(int trainer_ranks) {
    trainer_ = std::make_unique<ShardedTrainer>(trainer_ranks, kRows);  // what the fixture compares with
    Configure();
    on_device_ = std::make_unique<DeviceTrainer>(trainer_ranks, kRows);
    trainer_->CopyFrom(on_device_->on_host());
    publisher_ = WeightPublisher::Create(options_, on_device_->source()).value();
  }
  // The next version, written on the trainer's own stream while the publish begins.
  PublishReport Step(std::uint32_t seed) {
    on_device_->Fill(seed);
    trainer_->CopyFrom(on_device_->on_host());
    const PublishReport report = Publish({.ready = {&on_device_->written()}});
    on_device_->Settle();
    return report;
  }

  std::unique_ptr<DeviceTrainer> on_device_;
};

}  // namespace bascule
