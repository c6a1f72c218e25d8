#include "bridge/transport/nccl/link.h"

#include <algorithm>
#include <utility>

namespace bascule {
namespace {

// How long an end that goes waits for the library. By the real clock: it knows no other.
constexpr Duration kPatience = std::chrono::seconds(2);

Deadline Patience() { return Deadline::After(Clock::Real(), kPatience); }

}  // namespace

Result<std::unique_ptr<NcclLink>> NcclLink::Make(Device& device, Communicators& communicators, DeviceFrames& frames) {
  std::unique_ptr<NcclLink> link(new NcclLink(device, communicators, frames));
  ASSIGN_OR_RETURN(link->stream_, device.MakeStream(StreamPriority::kLow));
  return link;
}

Status NcclLink::Join(const CommunicatorId& id, int rank, int size) {
  CHECK(!is_open());
  ASSIGN_OR_RETURN(communicator_, communicators_.Join(device_, id, rank, size));
  return OkStatus();
}

Result<bool> NcclLink::Ready() {
  ASSIGN_OR_RETURN(const bool settled, communicator_->Settled());
  if (!settled) return false;
  if (unmarked_) {
    RETURN_IF_ERROR(stream_->Record(frames_.moved(*unmarked_)));
    moving_.push_back(*std::exchange(unmarked_, std::nullopt));
  }
  if (registered_) return true;
  RETURN_IF_ERROR(communicator_->Register(frames_.all()));
  registered_ = true;
  return communicator_->Settled();
}

Status NcclLink::Advance() {
  while (is_open()) {
    ASSIGN_OR_RETURN(const bool ready, Ready());
    if (!ready || waiting_.empty()) break;
    RETURN_IF_ERROR(Move(waiting_.front()));
    unmarked_ = waiting_.front().index;
    waiting_.pop_front();
  }
  return OkStatus();
}

Status NcclLink::Move(const Waiting& next) {
  RETURN_IF_ERROR(stream_->WaitFor(frames_.used(next.index)));
  const std::span<std::byte> memory = frames_.frame(next.index).first(next.bytes);
  if (communicator_->size() > 2) return communicator_->Broadcast(memory, /*root=*/0, *stream_);
  const bool sends = communicator_->rank() == 0;
  const Transfer transfer{
      .way = sends ? Transfer::Way::kSend : Transfer::Way::kReceive, .peer = sends ? 1 : 0, .memory = memory};
  return communicator_->Move({&transfer, 1}, *stream_);
}

Result<bool> NcclLink::Moved(std::uint32_t index) {
  const bool waits = std::ranges::any_of(waiting_, [&](const Waiting& waiting) { return waiting.index == index; });
  if (waits || unmarked_ == index) return false;
  RETURN_IF_ERROR(ForgetMoved());
  return frames_.moved(index).Passed();
}

// Moves end in the order of their stream.
Status NcclLink::ForgetMoved() {
  while (!moving_.empty()) {
    ASSIGN_OR_RETURN(const bool moved, frames_.moved(moving_.front()).Passed());
    if (!moved) break;
    moving_.pop_front();
  }
  return OkStatus();
}

Status NcclLink::Close() {
  if (!is_open()) return OkStatus();
  const std::unique_ptr<Communicator> ending = std::move(communicator_);
  const Result<bool> settled = ending->Settled();
  const bool all_done = settled.ok() && *settled && idle() && ForgetMoved().ok() && moving_.empty();
  const Status ended = all_done ? ending->Close(Patience(), Clock::Real()) : ending->Abort(Patience(), Clock::Real());
  waiting_.clear();
  unmarked_.reset();
  return ended.reason() == "nccl_stuck" ? ended : OkStatus();
}

}  // namespace bascule
