#include "bridge/transport/nccl/sender.h"

#include <algorithm>
#include <cstring>

namespace bascule {
namespace {

// How often NCCL is asked whether a frame has gone, and, while an acknowledgement is waited for, for errors.
constexpr Duration kWhileItGoes = std::chrono::microseconds(200);
constexpr Duration kWhileItIsAwaited = std::chrono::milliseconds(20);

}  // namespace

NcclSender::NcclSender(const RouteHello& hello, std::unique_ptr<BucketSender> carrier, FrameArena heads,
                       std::shared_ptr<NcclMover> mover, NcclBlame blame, Clock& clock)
    : hello_(hello),
      carrier_(std::move(carrier)),
      heads_(std::move(heads)),
      blame_(std::move(blame)),
      clock_(clock),
      credits_(hello.credits),
      movers_{std::move(mover)} {}

NcclSender::~NcclSender() {
  if (!overdue_.ok() && !AllMoved()) Blame(overdue_);
}

std::span<std::byte> NcclSender::Acquire() {
  if (!was_put_by_) acquired_ = credits_.Next();
  return heads_.frame(*acquired_);
}

std::span<std::byte> NcclSender::AcquireDevicePayload() {
  (void)Acquire();
  return movers_.front()->frames().frame(*acquired_);
}

std::uint32_t NcclSender::TakeAcquired() {
  CHECK(acquired_.has_value());
  if (!std::exchange(was_put_by_, false)) CHECK(credits_.Take(*acquired_));
  return *std::exchange(acquired_, std::nullopt);
}

Result<std::uint32_t> NcclSender::PutBy(DeviceStream& filling) {
  CHECK(acquired_.has_value() && !was_put_by_);
  RETURN_IF_ERROR(filling.Record(movers_.front()->frames().used(*acquired_)));
  return TakeAcquired();
}

void NcclSender::TakeUp(std::uint32_t number) {
  CHECK(!acquired_.has_value());
  acquired_ = number;
  was_put_by_ = true;
}

Status NcclSender::Send(std::size_t bytes) {
  const std::uint32_t frame = TakeAcquired();
  sent_.push_back({.frame = frame});
  return Announce(frame, bytes, NcclWords{});
}

Status NcclSender::SendFilledOn(std::size_t bytes, std::size_t payload_bytes, DeviceStream& filled_on) {
  CHECK(acquired_.has_value() && std::cmp_less_equal(payload_bytes, hello_.frame_bytes));
  if (payload_bytes == 0) return Send(bytes);
  const std::shared_ptr<NcclMover>& own = movers_.front();
  RETURN_IF_ERROR(filled_on.Record(own->frames().used(*acquired_)));
  const Result<CommunicatorId> id = own->Give(*acquired_, payload_bytes);
  if (!id.ok()) return BrokenBy(id.status());
  return SendHeadOf(own, *acquired_, bytes, {.payload_bytes = payload_bytes, .communicator = *id});
}

Status NcclSender::SendHeadOf(const std::shared_ptr<NcclMover>& mover, std::uint32_t index, std::size_t bytes,
                              const NcclWords& words) {
  if (std::ranges::find(movers_, mover) == movers_.end()) movers_.push_back(mover);
  has_moved_ = true;
  const std::uint32_t frame = TakeAcquired();
  sent_.push_back({.frame = frame, .mover = mover.get(), .index = index});
  return Announce(frame, bytes, words);
}

Status NcclSender::Announce(std::uint32_t frame, std::size_t bytes, const NcclWords& words) {
  CHECK(std::cmp_less_equal(bytes, hello_.frame_bytes));
  std::memcpy(WriteWords(words, carrier_->Acquire()).data(), heads_.frame(frame).data(), bytes);
  return carrier_->Send(static_cast<std::size_t>(kNcclWordsBytes) + bytes);
}

Status NcclSender::Check() {
  for (const std::shared_ptr<NcclMover>& mover : movers_) {
    if (const Status why = mover->Check(); !why.ok()) return BrokenBy(why);
  }
  return OkStatus();
}

// A peer that is gone shows in many ways, and the carrier knows it.
Status NcclSender::BrokenBy(const Status& why) {
  const Status carrier = carrier_->NextAck(Deadline::At(clock_.Now())).status();
  if (carrier.reason() == "peer_lost") return carrier;
  Blame(why);
  return why;
}

void NcclSender::Blame(const Status& why) {
  if (!std::exchange(blamed_, true)) blame_.avoided->Add(blame_.address, why);
}

// Frames leave in order and arrive in order, so as many acknowledgements as have come, in whatever order, as many
// frames from the first on have been moved.
Result<BucketAck> NcclSender::NextAck(Deadline deadline) {
  if (!returning_) {
    ASSIGN_OR_RETURN(returning_, AwaitAck(deadline));
  }
  RETURN_IF_ERROR(AwaitMoved(deadline));
  CHECK(credits_.Return(sent_.front().frame));
  sent_.pop_front();
  return *std::exchange(returning_, std::nullopt);
}

Result<BucketAck> NcclSender::AwaitAck(Deadline deadline) {
  overdue_ = OkStatus();
  while (true) {
    RETURN_IF_ERROR(Check());
    const Deadline soon = has_moved_ ? std::min(deadline, Deadline::After(clock_, kWhileItIsAwaited)) : deadline;
    const Result<BucketAck> ack = carrier_->NextAck(soon);
    if (ack.status().code() != StatusCode::kDeadlineExceeded) return ack;
    if (!deadline.Passed(clock_)) continue;
    overdue_ = ack.status();
    return ack;
  }
}

Status NcclSender::AwaitMoved(Deadline deadline) {
  while (true) {
    if (cancelled_) return Status::Cancelled("cancelled");
    RETURN_IF_ERROR(Check());
    ASSIGN_OR_RETURN(const bool moved, Moved(sent_.front()));
    if (moved) return OkStatus();
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline");
    clock_.SleepUntil(std::min(clock_.Now() + kWhileItGoes, deadline.point()), {});
  }
}

bool NcclSender::AllMoved() const {
  return std::ranges::all_of(sent_, [](const Sent& sent) {
    const Result<bool> moved = Moved(sent);
    return moved.ok() && *moved;
  });
}

void NcclSender::Cancel() {
  cancelled_ = true;
  carrier_->Cancel();
}

std::unique_ptr<BucketSender> MakeNcclSender(const RouteHello& hello, std::unique_ptr<BucketSender> carrier,
                                             FrameArena heads, std::shared_ptr<NcclMover> mover, NcclBlame blame,
                                             Clock& clock) {
  return std::make_unique<NcclSender>(hello, std::move(carrier), std::move(heads), std::move(mover), std::move(blame),
                                      clock);
}

}  // namespace bascule
