// The trainer's end of a sync benchmark: one trainer rank with all of a model's weights in one block of memory.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "bridge/session/control.h"
#include "bridge/transport/transport.h"
#include "device/buffer.h"
#include "model/model_config.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

class SyncTrainer {
 public:
  // Publishes to the engine at `address` of `control`, over `transport`. Both are borrowed.
  //
  // ResourceExhausted "device_memory"
  static Result<std::unique_ptr<SyncTrainer>> Create(const ModelConfig& config, std::string address,
                                                     ControlDialer& control, TransportDialer& transport);

  // Publishes the next version and waits until it is live. The seconds from the Publish call until the engine had
  // proven every byte and the trainer knew.
  //
  // What became of the replica, when it did not commit
  Result<double> Publish();
  // As above, for who wants to know more of it.
  Result<PublishReport> PublishAndReport();

  // As Publish, but returns once the engine has proven every byte, before the flip, which AwaitFlip waits for.
  Status PublishUntilSealed();
  Status AwaitFlip();

  std::span<const std::byte> weights() const { return weights_->bytes(); }

 private:
  SyncTrainer() = default;

  std::unique_ptr<DeviceBuffer> weights_;
  std::unique_ptr<WeightPublisher> publisher_;
  std::shared_ptr<PublishHandle> sealed_;  // shared with the publisher
};

}  // namespace bascule
