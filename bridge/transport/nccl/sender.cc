#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/transport/credits.h"
#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/nccl/route.h"

namespace bascule {
namespace {

// How often NCCL is asked: while frames wait for it, and while an acknowledgement is waited for, for errors.
constexpr Duration kWhileItWaits = std::chrono::microseconds(200);
constexpr Duration kWhileItMoves = std::chrono::milliseconds(20);

// The sending thread announces frames and takes acknowledgements. A thread of the sender's own hands frames to NCCL
// when both ends have joined and NCCL takes more, whatever the sending thread does meanwhile.
class NcclSender final : public BucketSender {
 public:
  NcclSender(const RouteHello& hello, std::unique_ptr<BucketSender> carrier, FrameArena heads,
             std::unique_ptr<NcclLink> link, NcclBlame blame, Clock& clock)
      : hello_(hello),
        carrier_(std::move(carrier)),
        heads_(std::move(heads)),
        blame_(std::move(blame)),
        clock_(clock),
        credits_(hello.credits),
        link_(std::move(link)),
        frames_(link_->frames()) {}
  ~NcclSender() override;

  std::int64_t frame_bytes() const override { return hello_.frame_bytes; }
  std::int32_t credits() const override { return hello_.credits; }
  bool wants_checksum() const override { return carrier_->wants_checksum(); }
  // While a frame comes back the next to acquire may be that one.
  bool HasCredit() const override { return !returning_ && credits_.AnyFree(); }

  std::span<std::byte> Acquire() override {
    if (!was_put_by_) acquired_ = credits_.Next();
    return heads_.frame(*acquired_);
  }
  Status Send(std::size_t bytes) override {
    const std::uint32_t index = TakeAcquired();
    sent_.push_back({index, /*has_payload=*/false});
    return Announce(index, bytes, NcclWords{});
  }

  bool HasDevicePayload() const override { return true; }
  std::span<std::byte> AcquireDevicePayload() override {
    (void)Acquire();
    return frames_.frame(*acquired_);
  }
  Result<std::uint32_t> PutBy(DeviceStream& filling) override {
    CHECK(acquired_.has_value() && !was_put_by_);
    RETURN_IF_ERROR(filling.Record(frames_.used(*acquired_)));
    return TakeAcquired();
  }
  void TakeUp(std::uint32_t number) override {
    CHECK(!acquired_.has_value());
    acquired_ = number;
    was_put_by_ = true;
  }
  Status SendFilledOn(std::size_t bytes, DeviceStream& filled_on) override EXCLUDES(mu_);

  Result<BucketAck> NextAck(Deadline deadline) override;
  void Cancel() override {
    cancelled_ = true;
    carrier_->Cancel();
  }

 private:
  struct Sent {
    std::uint32_t index = 0;
    bool has_payload = false;
  };

  std::uint32_t TakeAcquired() {
    CHECK(acquired_.has_value());
    if (!std::exchange(was_put_by_, false)) CHECK(credits_.Take(*acquired_));
    return *std::exchange(acquired_, std::nullopt);
  }
  Status Announce(std::uint32_t index, std::size_t bytes, const NcclWords& words);
  Result<BucketAck> AwaitAck(Deadline deadline);
  Status AwaitMoved(Deadline deadline);
  Result<bool> Moved(const Sent& sent) EXCLUDES(mu_);
  bool AllMoved();
  void Blame(const Status& why) {
    if (!std::exchange(blamed_, true)) blame_.avoided->Add(blame_.address, why);
  }
  // What broke the link, if anything has.
  Status Check() EXCLUDES(mu_);

  CommunicatorId GiveToMover(std::uint32_t index) EXCLUDES(mu_);
  void Run(const std::stop_token& stop) EXCLUDES(mu_);
  Status MoveWhatCanBe() REQUIRES(mu_);

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
  Status overdue_;  // what the latest wait for an acknowledgement ended with, where that was its deadline

  Mutex mu_;  // Guards what is NCCL's; never held while the carrier or a peer is waited for.
  CondVar changed_;
  const std::unique_ptr<NcclLink> link_;  // its frames are the sending thread's
  DeviceFrames& frames_;
  std::deque<std::uint32_t> unmoved_ GUARDED_BY(mu_);  // announced, and not yet given to NCCL, in order
  Status broken_ GUARDED_BY(mu_);
  Worker mover_;  // from the first frame with a second part on
};

NcclSender::~NcclSender() {
  mover_.RequestStop();
  {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  mover_.Join();
  if (!overdue_.ok() && !AllMoved()) Blame(overdue_);
}

Status NcclSender::Announce(std::uint32_t index, std::size_t bytes, const NcclWords& words) {
  CHECK(std::cmp_less_equal(bytes, hello_.frame_bytes));
  std::memcpy(WriteWords(words, carrier_->Acquire()).data(), heads_.frame(index).data(), bytes);
  return carrier_->Send(static_cast<std::size_t>(kNcclWordsBytes) + bytes);
}

Status NcclSender::SendFilledOn(std::size_t bytes, DeviceStream& filled_on) {
  CHECK(acquired_.has_value());
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(filled_on.Record(frames_.used(*acquired_)));
  NcclWords words{.payload_bytes = static_cast<std::uint64_t>(hello_.frame_bytes)};
  words.communicator = GiveToMover(*acquired_);
  RETURN_IF_ERROR(Check());
  if (!mover_.joinable()) mover_ = Worker("nccl_send", [this](const std::stop_token& stop) { Run(stop); });
  const std::uint32_t index = TakeAcquired();
  sent_.push_back({index, /*has_payload=*/true});
  return Announce(index, bytes, words);
}

// Of the communicator that moves it; none, and the link is broken, where there is none to be had.
CommunicatorId NcclSender::GiveToMover(std::uint32_t index) {
  const MutexLock lock(mu_);
  const Result<CommunicatorId> id = link_->IdOfSender();
  if (!id.ok()) {
    broken_ = id.status();
    return {};
  }
  unmoved_.push_back(index);
  changed_.NotifyAll();
  return *id;
}

void NcclSender::Run(const std::stop_token& stop) {
  const MutexLock lock(mu_);
  while (!stop.stop_requested()) {
    static_cast<void>(MoveWhatCanBe());
    const bool waits = broken_.ok() && link_->is_open() && !(unmoved_.empty() && link_->is_marked());
    clock_.WaitUntil(changed_, mu_, clock_.Now() + (waits ? kWhileItWaits : std::chrono::seconds(1)));
  }
}

// Also finds errors, where there is nothing to move.
Status NcclSender::MoveWhatCanBe() {
  while (broken_.ok() && link_->is_open()) {
    const Result<bool> ready = link_->Ready();
    broken_ = ready.status();
    if (broken_.ok() && (!*ready || unmoved_.empty())) return OkStatus();
    if (broken_.ok()) broken_ = link_->Move(unmoved_.front(), static_cast<std::size_t>(hello_.frame_bytes));
    if (broken_.ok()) unmoved_.pop_front();
  }
  if (!broken_.ok()) link_->Close();
  return broken_;
}

// A peer that is gone shows in many ways, and the carrier knows it.
Status NcclSender::Check() {
  Status why;
  {
    const MutexLock lock(mu_);
    why = MoveWhatCanBe();
  }
  if (why.ok()) return why;
  const Status carrier = carrier_->NextAck(Deadline::At(clock_.Now())).status();
  if (carrier.reason() == "peer_lost") return carrier;
  Blame(why);
  return why;
}

// Frames leave in order and arrive in order, so as many acknowledgements as have come, in whatever order, as many
// frames from the first on have been moved.
Result<BucketAck> NcclSender::NextAck(Deadline deadline) {
  if (!returning_) {
    ASSIGN_OR_RETURN(returning_, AwaitAck(deadline));
  }
  RETURN_IF_ERROR(AwaitMoved(deadline));
  CHECK(credits_.Return(sent_.front().index));
  sent_.pop_front();
  return *std::exchange(returning_, std::nullopt);
}

Result<BucketAck> NcclSender::AwaitAck(Deadline deadline) {
  overdue_ = OkStatus();
  while (true) {
    RETURN_IF_ERROR(Check());
    const Deadline soon = mover_.joinable() ? std::min(deadline, Deadline::After(clock_, kWhileItMoves)) : deadline;
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
    clock_.SleepUntil(std::min(clock_.Now() + kWhileItWaits, deadline.point()), {});
  }
}

Result<bool> NcclSender::Moved(const Sent& sent) {
  if (!sent.has_payload) return true;
  const MutexLock lock(mu_);
  if (std::ranges::find(unmoved_, sent.index) != unmoved_.end()) return false;
  return link_->Moved(sent.index);
}

bool NcclSender::AllMoved() {
  return std::ranges::all_of(sent_, [this](const Sent& sent) {
    const Result<bool> moved = Moved(sent);
    return moved.ok() && *moved;
  });
}

}  // namespace

std::unique_ptr<BucketSender> MakeNcclSender(const RouteHello& hello, std::unique_ptr<BucketSender> carrier,
                                             FrameArena heads, std::unique_ptr<NcclLink> link, NcclBlame blame,
                                             Clock& clock) {
  return std::make_unique<NcclSender>(hello, std::move(carrier), std::move(heads), std::move(link), std::move(blame),
                                      clock);
}

}  // namespace bascule
