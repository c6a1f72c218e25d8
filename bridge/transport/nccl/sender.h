// The sending end of an nccl route, as its cast sees it.
//
// Thread-safety: confined to one sending thread, except Cancel.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bridge/transport/credits.h"
#include "bridge/transport/frame_arena.h"
#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/nccl/mover.h"
#include "bridge/transport/nccl/route.h"
#include "bridge/transport/transport.h"

namespace bascule {

class NcclSender final : public BucketSender {
 public:
  NcclSender(const RouteHello& hello, std::unique_ptr<BucketSender> carrier, FrameArena heads,
             std::shared_ptr<NcclMover> mover, NcclBlame blame, Clock& clock);
  ~NcclSender() override;

  const RouteHello& hello() const { return hello_; }
  std::int64_t frame_bytes() const override { return hello_.frame_bytes; }
  std::int32_t credits() const override { return hello_.credits; }
  bool wants_checksum() const override { return carrier_->wants_checksum(); }
  // While a frame comes back the next to acquire may be that one.
  bool HasCredit() const override { return !returning_ && credits_.AnyFree(); }
  std::span<std::byte> Acquire() override;
  Status Send(std::size_t bytes) override;

  bool HasDevicePayload() const override { return true; }
  std::span<std::byte> AcquireDevicePayload() override;
  Result<std::uint32_t> PutBy(DeviceStream& filling) override;
  void TakeUp(std::uint32_t number) override;
  Status SendFilledOn(std::size_t bytes, std::size_t payload_bytes, DeviceStream& filled_on) override;

  Result<BucketAck> NextAck(Deadline deadline) override;
  void Cancel() override;

  // For a cast. Puts the acquired frame by, without a second part; sends it with one that `mover` was given as its
  // frame `index`, and that it moves to the receiver of this route as `words` say; and what its user is told where NCCL
  // fails so.
  std::uint32_t PutHeadBy() { return TakeAcquired(); }
  Status SendHeadOf(const std::shared_ptr<NcclMover>& mover, std::uint32_t index, std::size_t bytes,
                    const NcclWords& words);
  Status BrokenBy(const Status& why);

 private:
  struct Sent {
    std::uint32_t frame = 0;
    NcclMover* mover = nullptr;  // null: it has no second part
    std::uint32_t index = 0;     // of that among the mover's
  };

  std::uint32_t TakeAcquired();
  Status Announce(std::uint32_t frame, std::size_t bytes, const NcclWords& words);
  // What has broken the route, if anything has.
  Status Check();
  Result<BucketAck> AwaitAck(Deadline deadline);
  Status AwaitMoved(Deadline deadline);
  static Result<bool> Moved(const Sent& sent) { return sent.mover == nullptr ? true : sent.mover->Moved(sent.index); }
  bool AllMoved() const;
  void Blame(const Status& why);

  const RouteHello hello_;
  const std::unique_ptr<BucketSender> carrier_;
  const FrameArena heads_;
  const NcclBlame blame_;
  Clock& clock_;
  Credits credits_;
  std::optional<std::uint32_t> acquired_;
  bool was_put_by_ = false;             // the acquired frame, which has its credit already
  std::deque<Sent> sent_;               // not yet acknowledged, in order
  std::optional<BucketAck> returning_;  // acknowledged, while its frame is perhaps still read
  std::atomic<bool> cancelled_ = false;
  bool blamed_ = false;
  Status overdue_;  // what the latest wait for an acknowledgement ended with, at its deadline
  std::vector<std::shared_ptr<NcclMover>> movers_;  // its own, and those of casts that it has sent; shared with them
  bool has_moved_ = false;                          // any second part
};

}  // namespace bascule
