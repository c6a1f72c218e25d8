#include "bridge/transport/nccl/mover.h"

#include <utility>

namespace bascule {
namespace {

// How often NCCL is asked while frames wait for it, and while there is nothing to move, for errors.
constexpr Duration kWhileItWaits = std::chrono::microseconds(200);
constexpr Duration kWhileIdle = std::chrono::seconds(1);
// A receiver joins when it hears of the first frame. One that takes longer than this will not come, and there may be
// time left for another transport.
constexpr Duration kJoinPatience = std::chrono::seconds(30);

}  // namespace

Result<std::shared_ptr<NcclMover>> NcclMover::Make(Device& device, Communicators& communicators,
                                                   std::int64_t frame_bytes, std::int32_t credits,
                                                   std::int32_t receivers, Clock& clock) {
  const std::shared_ptr<NcclMover> mover(new NcclMover(communicators, receivers, clock));
  ASSIGN_OR_RETURN(mover->frames_, DeviceFrames::Make(device, frame_bytes, credits));
  const MutexLock lock(mover->mu_);
  ASSIGN_OR_RETURN(mover->link_, NcclLink::Make(device, communicators, *mover->frames_));
  return mover;
}

NcclMover::~NcclMover() {
  worker_.RequestStop();
  {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  worker_.Join();
  const MutexLock lock(mu_);
  if (link_ != nullptr && stuck_.ok()) stuck_ = link_->Close();
  link_.reset();
  if (frames_ != nullptr) DeviceFrames::Release(std::move(frames_), stuck_);
}

Result<CommunicatorId> NcclMover::Give(std::uint32_t index, std::size_t bytes) {
  if (!worker_.joinable()) worker_ = Worker("nccl_send", [this](const std::stop_token& stop) { Run(stop); });
  const MutexLock lock(mu_);
  if (!id_ && broken_.ok()) broken_ = Join();
  if (broken_.ok()) link_->Give(index, bytes);
  RETURN_IF_ERROR(Advance());
  changed_.NotifyAll();
  return *id_;
}

Status NcclMover::Join() {
  ASSIGN_OR_RETURN(const CommunicatorId id, communicators_.NewId());
  RETURN_IF_ERROR(link_->Join(id, /*rank=*/0, 1 + receivers_));
  id_ = id;
  joined_by_ = Deadline::After(clock_, kJoinPatience);
  return OkStatus();
}

Status NcclMover::Advance() {
  if (broken_.ok()) broken_ = link_->Advance();
  if (joined_by_ && link_->has_joined()) joined_by_.reset();
  if (broken_.ok() && joined_by_ && joined_by_->Passed(clock_)) {
    broken_ = Status::DeadlineExceeded("nccl_deadline", fmt::format("{} receivers have not all joined", receivers_));
  }
  if (!broken_.ok() && link_->is_open()) stuck_ = link_->Close();
  return broken_;
}

Result<bool> NcclMover::Moved(std::uint32_t index) {
  const MutexLock lock(mu_);
  return link_->Moved(index);
}

Status NcclMover::Check() {
  const MutexLock lock(mu_);
  return Advance();
}

void NcclMover::Run(const std::stop_token& stop) {
  const MutexLock lock(mu_);
  while (!stop.stop_requested()) {
    const bool waits = Advance().ok() && !link_->idle();
    clock_.WaitUntil(changed_, mu_, clock_.Now() + (waits ? kWhileItWaits : kWhileIdle));
  }
}

}  // namespace bascule
