#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "bridge/transport/credits.h"
#include "bridge/transport/nccl/route.h"
#include "bridge/transport/nccl/sender.h"

namespace bascule {
namespace {

// The cast's frames are taken in turn. Each holds a frame of every route until that is acknowledged, routes free theirs
// in order, and there are as many of one as of the other: so where every route has a free frame the next of the cast's
// is free too.
class NcclCast final : public BucketCast {
 public:
  NcclCast(std::vector<NcclSender*> routes, std::shared_ptr<NcclMover> mover)
      : routes_(std::move(routes)), mover_(std::move(mover)), put_by_(static_cast<std::size_t>(credits())) {}

  std::span<std::byte> AcquireDevicePayload() override { return mover_->frames().frame(next_); }
  Result<std::uint32_t> PutBy(DeviceStream& filling) override;
  void TakeUp(std::uint32_t number) override;
  std::span<std::byte> Head(std::size_t index) override { return routes_[index]->Acquire(); }
  Status SendFilledOn(std::size_t bytes, std::size_t payload_bytes, DeviceStream& filled_on) override;

 private:
  std::uint32_t credits() const { return static_cast<std::uint32_t>(routes_.front()->credits()); }

  const std::vector<NcclSender*> routes_;
  const std::shared_ptr<NcclMover> mover_;  // shared with the routes that sent what it moves
  std::uint32_t next_ = 0;
  std::deque<std::uint32_t> waiting_;               // put by, in order
  std::vector<std::vector<std::uint32_t>> put_by_;  // per frame that waits: the frames of the routes
  std::uint32_t acquired_ = 0;
};

Result<std::uint32_t> NcclCast::PutBy(DeviceStream& filling) {
  RETURN_IF_ERROR(filling.Record(mover_->frames().used(next_)));
  std::vector<std::uint32_t>& heads = put_by_[next_];
  heads.clear();
  for (NcclSender* const route : routes_) {
    (void)route->Acquire();
    heads.push_back(route->PutHeadBy());
  }
  waiting_.push_back(next_);
  return std::exchange(next_, (next_ + 1) % credits());
}

void NcclCast::TakeUp(std::uint32_t number) {
  CHECK(!waiting_.empty() && waiting_.front() == number);
  waiting_.pop_front();
  for (std::size_t r = 0; r < routes_.size(); ++r) routes_[r]->TakeUp(put_by_[number][r]);
  acquired_ = number;
}

Status NcclCast::SendFilledOn(std::size_t bytes, std::size_t payload_bytes, DeviceStream& filled_on) {
  RETURN_IF_ERROR(filled_on.Record(mover_->frames().used(acquired_)));
  const Result<CommunicatorId> id = mover_->Give(acquired_, payload_bytes);
  if (!id.ok()) return routes_.front()->BrokenBy(id.status());
  NcclWords words{.payload_bytes = payload_bytes, .communicator = *id, .size = mover_->receivers() + 1};
  for (std::size_t r = 0; r < routes_.size(); ++r) {
    words.rank = static_cast<std::int32_t>(r) + 1;
    RETURN_IF_ERROR(routes_[r]->SendHeadOf(mover_, acquired_, bytes, words));
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<BucketCast> MakeNcclCast(std::span<BucketSender* const> routes, std::shared_ptr<NcclMover> mover) {
  std::vector<NcclSender*> own;
  for (BucketSender* const route : routes) own.push_back(static_cast<NcclSender*>(route));
  return std::make_unique<NcclCast>(std::move(own), std::move(mover));
}

}  // namespace bascule
