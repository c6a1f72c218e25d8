#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "bridge/transport/credits.h"
#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/nccl/route.h"

namespace bascule {
namespace {

constexpr Duration kShortest = std::chrono::microseconds(10);
constexpr Duration kLongest = std::chrono::microseconds(200);

class NcclReceiver final : public BucketReceiver {
 public:
  NcclReceiver(const RouteHello& hello, std::unique_ptr<BucketReceiver> carrier, std::unique_ptr<NcclLink> link,
               Clock& clock)
      : hello_(hello), carrier_(std::move(carrier)), link_(std::move(link)), clock_(clock), places_(hello.credits) {}

  const RouteHello& hello() const override { return hello_; }
  Result<ReceivedFrame> Receive(Deadline deadline) override;
  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override;
  Status AcknowledgeReadOn(const ReceivedFrame& frame, const BucketAck& ack, DeviceStream& read_on) override;
  void Cancel() override {
    cancelled_ = true;
    carrier_->Cancel();
  }

 private:
  struct Arriving {
    ReceivedFrame frame;  // the carrier's
    NcclWords words;
    std::optional<std::uint32_t> place;  // among the frames of the device, once NCCL receives into it
  };

  Status TakeAnnounced(Deadline deadline);
  Status MoveWhatCanBe();
  Result<bool> FirstIsHere() const;
  ReceivedFrame HandOut();
  Status Break(Status why);

  const RouteHello hello_;
  const std::unique_ptr<BucketReceiver> carrier_;
  const std::unique_ptr<NcclLink> link_;
  Clock& clock_;
  Credits places_;
  std::deque<Arriving> arriving_;                      // announced, in order
  std::map<std::uint64_t, std::uint32_t> handed_out_;  // the carrier's handles, and the places of their second parts
  std::atomic<bool> cancelled_ = false;
  Status broken_;
  Status lost_;  // what the carrier said last, where it has no more
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
    const Result<NcclWords> words = ReadWords(frame->bytes, hello_.frame_bytes);
    if (!words.ok()) return Break(words.status());
    arriving_.push_back({*frame, *words, std::nullopt});
  }
  return arriving_.empty() ? lost_ : OkStatus();
}

// Also finds errors, where there is nothing to move.
Status NcclReceiver::MoveWhatCanBe() {
  for (Arriving& arriving : arriving_) {
    if (arriving.words.payload_bytes == 0 || arriving.place) continue;
    // Another communicator begins when what the one before brings has been handed out.
    if (arriving_.front().place && !link_->Is(arriving.words.communicator)) break;
    if (const Status joined = link_->Join(arriving.words.communicator); !joined.ok()) return Break(joined);
    const Result<bool> ready = link_->Ready();
    if (!ready.ok()) return Break(ready.status());
    if (!*ready) break;
    const std::uint32_t place = places_.Next();
    const Status moved = link_->Move(place, arriving.words.payload_bytes);
    if (!moved.ok()) return Break(moved);
    CHECK(places_.Take(place));
    arriving.place = place;
  }
  if (!link_->is_open()) return OkStatus();
  const Result<bool> ready = link_->Ready();
  return ready.ok() ? OkStatus() : Break(ready.status());
}

Result<bool> NcclReceiver::FirstIsHere() const {
  const Arriving& first = arriving_.front();
  if (first.words.payload_bytes == 0) return true;
  if (!first.place) return false;
  return link_->Moved(*first.place);
}

ReceivedFrame NcclReceiver::HandOut() {
  const Arriving first = arriving_.front();
  arriving_.pop_front();
  ReceivedFrame frame{.bytes = first.frame.bytes.subspan(kNcclWordsBytes), .handle = first.frame.handle};
  if (first.place) {
    handed_out_.insert_or_assign(frame.handle, *first.place);
    frame.device_payload = link_->frames().frame(*first.place).first(first.words.payload_bytes);
  }
  return frame;
}

Result<ReceivedFrame> NcclReceiver::Receive(Deadline deadline) {
  for (Duration step = kShortest;; step = std::min(2 * step, kLongest)) {
    RETURN_IF_ERROR(broken_);
    RETURN_IF_ERROR(TakeAnnounced(deadline));
    RETURN_IF_ERROR(MoveWhatCanBe());
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
  if (place != handed_out_.end()) RETURN_IF_ERROR(read_on.Record(link_->frames().used(place->second)));
  return Acknowledge(frame, ack);
}

Status NcclReceiver::Break(Status why) {
  link_->Close();
  broken_ = lost_.ok() ? std::move(why) : lost_;  // a peer that is gone shows in many ways; the carrier knows
  return broken_;
}

}  // namespace

std::unique_ptr<BucketReceiver> MakeNcclReceiver(const RouteHello& hello, std::unique_ptr<BucketReceiver> carrier,
                                                 std::unique_ptr<NcclLink> link, Clock& clock) {
  return std::make_unique<NcclReceiver>(hello, std::move(carrier), std::move(link), clock);
}

}  // namespace bascule
