#include "bridge/transport/nccl/link.h"

#include <utility>

namespace bascule {
namespace {

// How long an end that goes waits for the library and for work on its frames. By the real clock: neither knows another.
constexpr Duration kPatience = std::chrono::seconds(2);

Deadline Patience() { return Deadline::After(Clock::Real(), kPatience); }

}  // namespace

Result<std::unique_ptr<NcclLink>> NcclLink::Make(LinkEnd end, Device& device, Communicators& communicators,
                                                 std::int64_t frame_bytes, std::int32_t credits) {
  std::unique_ptr<NcclLink> link(new NcclLink(end, device, communicators));
  ASSIGN_OR_RETURN(link->frames_, DeviceFrames::Make(device, frame_bytes, credits));
  ASSIGN_OR_RETURN(link->stream_, device.MakeStream(StreamPriority::kLow));
  return link;
}

NcclLink::~NcclLink() {
  Close();
  const Status settled = stuck_.ok() && frames_ != nullptr ? frames_->Settle(Patience(), Clock::Real()) : stuck_;
  if (!settled.ok()) DeviceFrames::KeepForEver(std::move(frames_), settled);
}

Status NcclLink::Begin(const CommunicatorId& id) {
  ASSIGN_OR_RETURN(communicator_, communicators_.Join(device_, id, static_cast<int>(end_), /*size=*/2));
  id_ = id;
  registered_ = false;
  return OkStatus();
}

Result<CommunicatorId> NcclLink::IdOfSender() {
  if (!id_) {
    ASSIGN_OR_RETURN(const CommunicatorId id, communicators_.NewId());
    RETURN_IF_ERROR(Begin(id));
  }
  return *id_;
}

Status NcclLink::Join(const CommunicatorId& id) {
  if (Is(id)) return OkStatus();
  Close();
  RETURN_IF_ERROR(stuck_);
  return Begin(id);
}

Result<bool> NcclLink::Ready() {
  ASSIGN_OR_RETURN(const bool settled, communicator_->Settled());
  if (!settled) return false;
  if (unmarked_) {
    RETURN_IF_ERROR(stream_->Record(frames_->moved(*unmarked_)));
    unmarked_.reset();
  }
  if (registered_) return true;
  RETURN_IF_ERROR(communicator_->Register(frames_->all()));
  registered_ = true;
  return communicator_->Settled();
}

Status NcclLink::Move(std::uint32_t index, std::size_t bytes) {
  CHECK(!unmarked_);
  RETURN_IF_ERROR(stream_->WaitFor(frames_->used(index)));
  const Transfer transfer{.way = end_ == LinkEnd::kSender ? Transfer::Way::kSend : Transfer::Way::kReceive,
                          .peer = end_ == LinkEnd::kSender ? 1 : 0,
                          .memory = frames_->frame(index).first(bytes)};
  RETURN_IF_ERROR(communicator_->Move({&transfer, 1}, *stream_));
  unmarked_ = index;
  return OkStatus();
}

Result<bool> NcclLink::Moved(std::uint32_t index) const {
  if (unmarked_ == index) return false;
  return frames_->moved(index).Passed();
}

void NcclLink::Close() {
  if (communicator_ == nullptr) return;
  const std::unique_ptr<Communicator> ending = std::move(communicator_);
  const Result<bool> settled = ending->Settled();
  const bool all_done =
      settled.ok() && *settled && !unmarked_ && frames_->Settle(Deadline::At(Clock::Real().Now()), Clock::Real()).ok();
  const Status ended = all_done ? ending->Close(Patience(), Clock::Real()) : ending->Abort(Patience(), Clock::Real());
  unmarked_.reset();
  if (ended.reason() == "nccl_stuck") stuck_ = ended;
}

}  // namespace bascule
