// The sender's end of a link: frames on its device, and a thread of its own that hands them to NCCL when the receivers
// have joined and NCCL takes more, whatever the sending thread does meanwhile. It moves the frames of one route, or
// what a cast sends over several.
//
// Thread-safety: thread-safe, but frames are filled and given by one sending thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/transport/nccl/device_frames.h"
#include "bridge/transport/nccl/link.h"

namespace bascule {

class NcclMover {
 public:
  // ResourceExhausted "device_memory"; errors of the device. `device` and `communicators` outlive it.
  static Result<std::shared_ptr<NcclMover>> Make(Device& device, Communicators& communicators, std::int64_t frame_bytes,
                                                 std::int32_t credits, std::int32_t receivers, Clock& clock);
  ~NcclMover();

  DeviceFrames& frames() { return *frames_; }
  std::int32_t receivers() const { return receivers_; }

  // The first `bytes` of frame `index` go to all receivers, once what its user marked is done. Gives the communicator
  // that moves them, which the first call makes. Errors of NCCL and the device.
  Result<CommunicatorId> Give(std::uint32_t index, std::size_t bytes) EXCLUDES(mu_);
  // Whether that is done. Errors of the device.
  Result<bool> Moved(std::uint32_t index) EXCLUDES(mu_);
  // What broke it, if anything has.
  //
  // DeadlineExceeded "nccl_deadline"  a receiver does not join; errors of NCCL and the device
  Status Check() EXCLUDES(mu_);

 private:
  NcclMover(Communicators& communicators, std::int32_t receivers, Clock& clock)
      : communicators_(communicators), receivers_(receivers), clock_(clock) {}
  Status Join() REQUIRES(mu_);
  Status Advance() REQUIRES(mu_);
  void Run(const std::stop_token& stop) EXCLUDES(mu_);

  Communicators& communicators_;
  const std::int32_t receivers_;
  Clock& clock_;
  std::unique_ptr<DeviceFrames> frames_;
  Mutex mu_;  // Guards what is NCCL's; never held while a peer is waited for.
  CondVar changed_;
  std::unique_ptr<NcclLink> link_ GUARDED_BY(mu_);
  std::optional<CommunicatorId> id_ GUARDED_BY(mu_);
  std::optional<Deadline> joined_by_ GUARDED_BY(mu_);  // while they have not
  Status broken_ GUARDED_BY(mu_);
  Status stuck_ GUARDED_BY(mu_);  // NCCL's last word, where it still has the frames
  Worker worker_;                 // from the first frame on
};

}  // namespace bascule
