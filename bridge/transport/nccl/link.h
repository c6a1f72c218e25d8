// What NCCL does for frames of one end: a communicator, a stream of its own, and moves in the order in which they are
// given. Rank 0 is the sender. With one receiver a move is a send and a receive; with several, a broadcast, which
// carries a frame once to all of them. Nothing here waits but Close and destruction.
//
// A communicator serves one route, or the routes that one frame goes to at once. One for all routes of a rank would
// want moves in an order that all its peers know, or each waits for another in a circle; and an abort ends no other
// route.
//
// Thread-safety: confined to the thread of its end.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/transport/nccl/device_frames.h"
#include "device/communicator.h"

namespace bascule {

class NcclLink {
 public:
  // Moves `frames` of `device`. All outlive it. Errors of the device.
  static Result<std::unique_ptr<NcclLink>> Make(Device& device, Communicators& communicators, DeviceFrames& frames);
  ~NcclLink() { static_cast<void>(Close()); }

  // Begins to join; the rest is for after that. Once. Errors of NCCL.
  Status Join(const CommunicatorId& id, int rank, int size);
  bool is_open() const { return communicator_ != nullptr; }
  // All ranks have come.
  bool has_joined() const { return registered_; }

  // The next to be moved: the first `bytes` of a frame, once what its user marked is done.
  void Give(std::uint32_t index, std::size_t bytes) { waiting_.push_back({index, bytes}); }
  // Hands NCCL what it takes now: nothing before all ranks have come, then one move after the other. Also finds errors,
  // where there is nothing to move. Errors of NCCL and the device.
  Status Advance();
  // All that was given lies in the stream.
  bool idle() const { return waiting_.empty() && !unmarked_; }
  // Whether the move of a frame that was given is done. Errors of the device.
  Result<bool> Moved(std::uint32_t index);

  // Ends it: closed where all is done, else aborted. Afterwards NCCL touches no frame.
  //
  // DeadlineExceeded "nccl_stuck"  it does not come back: the frames must stay until the process ends
  Status Close();

 private:
  struct Waiting {
    std::uint32_t index = 0;
    std::size_t bytes = 0;
  };

  NcclLink(Device& device, Communicators& communicators, DeviceFrames& frames)
      : device_(device), communicators_(communicators), frames_(frames) {}
  Result<bool> Ready();
  Status Move(const Waiting& next);
  Status ForgetMoved();

  Device& device_;
  Communicators& communicators_;
  DeviceFrames& frames_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Communicator> communicator_;
  bool registered_ = false;
  std::deque<Waiting> waiting_;
  std::optional<std::uint32_t> unmarked_;  // the frame that NCCL was given last, while that is not in the stream
  std::deque<std::uint32_t> moving_;       // in the stream, in order, and not known to be done
};

}  // namespace bascule
