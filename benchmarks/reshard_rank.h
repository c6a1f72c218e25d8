// One trainer rank of a sharded trainer, with the share of every tensor that a layout gives to it.
//
// Thread-safety: confined to one thread.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "device/buffer.h"
#include "model/model_config.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

// Each rank its own slices, or rank 0 all of them.
enum class Sending { kOwnSlices, kGather };

class ReshardRank {
 public:
  // Rank `group.rank` of fully sharded ranks; `replica` is for rank 0.
  //
  // ResourceExhausted "device_memory"; as MakeTrainerLayout, WeightPublisher::Create and ShmListener::Create
  static Result<std::unique_ptr<ReshardRank>> Create(const ModelConfig& config, TrainerGroup group, Sending sending,
                                                     const std::string& replica);

  // Takes part in the next publish, to its end. What became of the replica, when it did not commit.
  Result<PublishReport> Publish();
  std::string group_address() const { return publisher_->group_address(); }

 private:
  ReshardRank() = default;

  GrpcControlDialer control_;
  GrpcControlHost host_;
  ShmDialer transport_;
  std::unique_ptr<ShmListener> slices_;  // of rank 0 when it gathers
  std::unique_ptr<DeviceBuffer> weights_;
  std::unique_ptr<WeightPublisher> publisher_;
};

}  // namespace bascule
