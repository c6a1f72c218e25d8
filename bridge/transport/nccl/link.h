// One end's side of what NCCL does for a route: a communicator of two ranks, sender 0 and receiver 1, a stream of its
// own, and the frames of this end, which are registered once. Nothing here waits but Close and destruction.
//
// A route has a communicator to itself: a rank with many peers on one would have to receive from them in an order that
// all of them know, or each waits for another in a circle; and an abort ends this route and no other.
//
// Thread-safety: confined to the thread of its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/transport/nccl/device_frames.h"
#include "device/communicator.h"

namespace bascule {

enum class LinkEnd { kSender = 0, kReceiver = 1 };

class NcclLink {
 public:
  // ResourceExhausted "device_memory"; errors of the device. `device` and `communicators` outlive it.
  static Result<std::unique_ptr<NcclLink>> Make(LinkEnd end, Device& device, Communicators& communicators,
                                                std::int64_t frame_bytes, std::int32_t credits);
  ~NcclLink();

  DeviceFrames& frames() { return *frames_; }

  // Of the communicator that moves frames from now on: the sender makes it with the first frame. Errors of NCCL.
  Result<CommunicatorId> IdOfSender();
  // The same at the receiver, which joins it. One that it had before is ended.
  Status Join(const CommunicatorId& id);

  // True when a frame can be moved now: both ends have come, and NCCL is done with what it was given last. Errors of
  // NCCL.
  Result<bool> Ready();
  // Frame `index` goes to the other end, or comes from there, once what its user marked is done. While Ready. Errors of
  // NCCL and the device.
  Status Move(std::uint32_t index, std::size_t bytes);
  // Whether that is done. Errors of the device.
  Result<bool> Moved(std::uint32_t index) const;
  // Whether all that NCCL was given lies in the stream.
  bool is_marked() const { return !unmarked_; }

  // Whether there is a communicator, and whether it is this one.
  bool is_open() const { return communicator_ != nullptr; }
  bool Is(const CommunicatorId& id) const { return is_open() && id_ == id; }
  // Ends it: closed where all is done, else aborted. Afterwards NCCL touches no frame; where it does not come back they
  // are kept for ever when this goes.
  void Close();

 private:
  NcclLink(LinkEnd end, Device& device, Communicators& communicators)
      : end_(end), device_(device), communicators_(communicators) {}
  Status Begin(const CommunicatorId& id);

  const LinkEnd end_;
  Device& device_;
  Communicators& communicators_;
  std::unique_ptr<DeviceFrames> frames_;
  std::unique_ptr<DeviceStream> stream_;
  std::optional<CommunicatorId> id_;
  std::unique_ptr<Communicator> communicator_;
  bool registered_ = false;
  std::optional<std::uint32_t> unmarked_;  // the frame that NCCL was given last, while that is not in the stream
  Status stuck_;                           // NCCL's last word, where it still has the frames
};

}  // namespace bascule
