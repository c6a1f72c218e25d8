// The trainer's end of a sync benchmark: one trainer rank with all of a model's weights in one block of memory.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

  // Publishes the next version, of which every tensor differs from the one before by an element, and waits until it is
  // live. The seconds from the Publish call until the engine had
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
  // An optimizer step, as small as one can be: an engine in place leaves tensors alone that are as they were.
  void Step();

  std::unique_ptr<DeviceBuffer> weights_;
  std::vector<std::size_t> tensors_;  // where each begins in weights_
  std::unique_ptr<WeightPublisher> publisher_;
  std::shared_ptr<PublishHandle> sealed_;  // shared with the publisher
};

}  // namespace bascule
