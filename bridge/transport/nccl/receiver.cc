#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "bridge/transport/credits.h"
#include "bridge/transport/nccl/link.h"
#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/nccl/route.h"

namespace bascule {
namespace {

constexpr Duration kShortest = std::chrono::microseconds(10);
constexpr Duration kLongest = std::chrono::microseconds(200);
// More than ways there are in which the ranks of one replica share tensors.
constexpr std::size_t kLinksMax = 64;

class NcclReceiver final : public BucketReceiver {
 public:
  NcclReceiver(const RouteHello& hello, std::unique_ptr<BucketReceiver> carrier, std::unique_ptr<DeviceFrames> frames,
               Device& device, Communicators& communicators, Clock& clock)
      : hello_(hello),
        carrier_(std::move(carrier)),
        device_(device),
        communicators_(communicators),
        clock_(clock),
        frames_(std::move(frames)),
        places_(hello.credits) {}
  ~NcclReceiver() override {
    CloseLinks();
    DeviceFrames::Release(std::move(frames_), stuck_);
  }

  const RouteHello& hello() const override { return hello_; }
  Result<ReceivedFrame> Receive(Deadline deadline) override;
  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override;
  Status AcknowledgeReadOn(const ReceivedFrame& frame, const BucketAck& ack, DeviceStream& read_on) override;
  void Cancel() override {
    cancelled_ = true;
    carrier_->Cancel();
  }

 private:
  // One for the route alone, and one for each cast that it is part of.
  struct Link {
    CommunicatorId id;
    std::unique_ptr<NcclLink> link;
  };
  struct Arriving {
    ReceivedFrame frame;  // the carrier's
    std::size_t payload_bytes = 0;
    NcclLink* link = nullptr;  // brings its second part; null: it has none
    std::uint32_t place = 0;   // of that among the frames of the device
  };

  Status TakeAnnounced(Deadline deadline);
  Status Expect(const ReceivedFrame& frame);
  Result<NcclLink*> LinkFor(const NcclWords& words);
  Status Advance();
  Result<bool> FirstIsHere() const;
  ReceivedFrame HandOut();
  Status Break(Status why);
  void CloseLinks();

  const RouteHello hello_;
  const std::unique_ptr<BucketReceiver> carrier_;
  Device& device_;
  Communicators& communicators_;
  Clock& clock_;
  std::unique_ptr<DeviceFrames> frames_;
  std::vector<Link> links_;
  Credits places_;
  std::deque<Arriving> arriving_;                      // announced, in order
  std::map<std::uint64_t, std::uint32_t> handed_out_;  // the carrier's handles, and the places of their second parts
  std::atomic<bool> cancelled_ = false;
  Status broken_;
  Status lost_;   // what the carrier said last, where it has no more
  Status stuck_;  // NCCL's last word, where it still has the frames
};

// Takes what the carrier has, and where it has nothing yet waits for one frame. So receives are with NCCL before their
// turn, and frames follow each other without a pause.
Status NcclReceiver::TakeAnnounced(Deadline deadline) {
  while (lost_.ok()) {
    const Result<ReceivedFrame> frame = carrier_->Receive(arriving_.empty() ? deadline : Deadline::At(clock_.Now()));
    if (!frame.ok()) {
      if (frame.status().code() == StatusCode::kDeadlineExceeded && !arriving_.empty()) return OkStatus();
      if (frame.status().code() != StatusCode::kUnavailable) return frame.status();
      lost_ = frame.status();
      break;
    }
    if (const Status expected = Expect(*frame); !expected.ok()) return Break(expected);
  }
  return arriving_.empty() ? lost_ : OkStatus();
}

// There is a place for it: the carrier has as many credits.
Status NcclReceiver::Expect(const ReceivedFrame& frame) {
  ASSIGN_OR_RETURN(const NcclWords words, ReadWords(frame.bytes, hello_.frame_bytes));
  Arriving arriving{.frame = frame, .payload_bytes = words.payload_bytes};
  if (words.payload_bytes > 0) {
    ASSIGN_OR_RETURN(arriving.link, LinkFor(words));
    arriving.place = places_.Next();
    CHECK(places_.Take(arriving.place));
    arriving.link->Give(arriving.place, words.payload_bytes);
  }
  arriving_.push_back(arriving);
  return OkStatus();
}

Result<NcclLink*> NcclReceiver::LinkFor(const NcclWords& words) {
  for (const Link& link : links_) {
    if (link.id == words.communicator) return link.link.get();
  }
  if (links_.size() == kLinksMax) return Status::DataLoss("bad_frame", fmt::format("{} communicators", kLinksMax + 1));
  ASSIGN_OR_RETURN(auto link, NcclLink::Make(device_, communicators_, *frames_));
  RETURN_IF_ERROR(link->Join(words.communicator, words.rank, words.size));
  return links_.emplace_back(Link{words.communicator, std::move(link)}).link.get();
}

// One link never waits for another, so the orders in which senders and their casts come do not matter.
Status NcclReceiver::Advance() {
  for (const Link& link : links_) {
    if (const Status moving = link.link->Advance(); !moving.ok()) return Break(moving);
  }
  return OkStatus();
}

Result<bool> NcclReceiver::FirstIsHere() const {
  const Arriving& first = arriving_.front();
  if (first.link == nullptr) return true;
  return first.link->Moved(first.place);
}

ReceivedFrame NcclReceiver::HandOut() {
  const Arriving first = arriving_.front();
  arriving_.pop_front();
  ReceivedFrame frame{.bytes = first.frame.bytes.subspan(kNcclWordsBytes), .handle = first.frame.handle};
  if (first.link != nullptr) {
    handed_out_.insert_or_assign(frame.handle, first.place);
    frame.device_payload = frames_->frame(first.place).first(first.payload_bytes);
  }
  return frame;
}

Result<ReceivedFrame> NcclReceiver::Receive(Deadline deadline) {
  for (Duration step = kShortest;; step = std::min(2 * step, kLongest)) {
    RETURN_IF_ERROR(broken_);
    RETURN_IF_ERROR(TakeAnnounced(deadline));
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(const bool is_here, FirstIsHere());
    if (cancelled_) return Status::Cancelled("cancelled");
    if (is_here) return HandOut();
    if (!lost_.ok()) return lost_;
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline");
    clock_.SleepUntil(std::min(clock_.Now() + step, deadline.point()), {});
  }
}

Status NcclReceiver::Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) {
  RETURN_IF_ERROR(carrier_->Acknowledge(frame, ack));
  const auto place = handed_out_.extract(frame.handle);
  if (!place.empty()) CHECK(places_.Return(place.mapped()));
  return OkStatus();
}

Status NcclReceiver::AcknowledgeReadOn(const ReceivedFrame& frame, const BucketAck& ack, DeviceStream& read_on) {
  const auto place = handed_out_.find(frame.handle);
  // The next receive into this place waits for the mark on the device, so the sender need not know of it.
  if (place != handed_out_.end()) RETURN_IF_ERROR(read_on.Record(frames_->used(place->second)));
  return Acknowledge(frame, ack);
}

Status NcclReceiver::Break(Status why) {
  CloseLinks();
  broken_ = lost_.ok() ? std::move(why) : lost_;  // a peer that is gone shows in many ways; the carrier knows
  return broken_;
}

void NcclReceiver::CloseLinks() {
  for (const Link& link : links_) {
    if (const Status closed = link.link->Close(); !closed.ok()) stuck_ = closed;
  }
}

}  // namespace

std::unique_ptr<BucketReceiver> MakeNcclReceiver(const RouteHello& hello, std::unique_ptr<BucketReceiver> carrier,
                                                 std::unique_ptr<DeviceFrames> frames, Device& device,
                                                 Communicators& communicators, Clock& clock) {
  return std::make_unique<NcclReceiver>(hello, std::move(carrier), std::move(frames), device, communicators, clock);
}

}  // namespace bascule
