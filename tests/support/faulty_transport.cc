#include "tests/support/faulty_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "base/mutex.h"

namespace bascule {
namespace {

constexpr std::array<std::string_view, 6> kFaultNames = {"drop", "duplicate", "hold", "corrupt", "truncate", "cut"};

Status PeerLost() { return Status::Unavailable("peer_lost", "a test cut the route"); }

// The offset of a fault in a frame of `bytes` bytes.
std::size_t PlaceIn(std::size_t bytes, std::int64_t offset) {
  const auto size = static_cast<std::int64_t>(bytes);
  return static_cast<std::size_t>(std::clamp<std::int64_t>(offset < 0 ? size + offset : offset, 0, size));
}

void FlipBit(std::span<std::byte> bytes, std::int64_t offset) {
  if (const std::size_t at = PlaceIn(bytes.size(), offset); at < bytes.size()) bytes[at] ^= std::byte{1};
}

// Hands out the faults of a plan as frames or acknowledgements pass.
class FaultCounter {
 public:
  explicit FaultCounter(std::vector<Fault> faults) : faults_(std::move(faults)) {}
  std::optional<Fault> Next() {
    const std::int64_t now = next_++;
    const auto found = std::ranges::find(faults_, now, &Fault::at);
    return found == faults_.end() ? std::nullopt : std::optional(*found);
  }

 private:
  const std::vector<Fault> faults_;
  std::int64_t next_ = 0;
};

// Things held back until enough others have passed or their time has come.
template <typename T>
class HeldBack {
 public:
  void Hold(T thing, const Fault& fault, TimePoint now) {
    held_.push_back({std::move(thing), fault.behind, now + fault.at_most});
  }
  void OnePassed() {
    for (Held& held : held_) --held.behind;
  }
  std::optional<T> TakeDue(TimePoint now) {
    const auto due =
        std::ranges::find_if(held_, [&](const Held& held) { return held.behind <= 0 || held.until <= now; });
    if (due == held_.end()) return std::nullopt;
    T thing = std::move(due->thing);
    held_.erase(due);
    return thing;
  }
  TimePoint NextDue() const {
    TimePoint next = TimePoint::max();
    for (const Held& held : held_) next = std::min(next, held.until);
    return next;
  }

 private:
  struct Held {
    T thing;
    int behind;
    TimePoint until;
  };
  std::deque<Held> held_;
};

// The wrapped end, which a cut destroys while Cancel may be at work on another thread: hence shared.
template <typename End>
class Cuttable {
 public:
  explicit Cuttable(std::unique_ptr<End> end) : end_(std::move(end)) {}
  std::shared_ptr<End> get() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return end_;
  }
  void Cut() EXCLUDES(mu_) {
    std::shared_ptr<End> cut;
    MutexLock lock(mu_);
    cut.swap(end_);
  }

 private:
  mutable Mutex mu_;
  std::shared_ptr<End> end_ GUARDED_BY(mu_);
};

class FaultyReceiver final : public BucketReceiver {
 public:
  FaultyReceiver(std::unique_ptr<BucketReceiver> inner, const FaultPlan& plan, Clock& clock)
      : hello_(inner->hello()),
        clock_(clock),
        inner_(std::move(inner)),
        frame_faults_(plan.frames),
        ack_faults_(plan.acks) {}

  const RouteHello& hello() const override { return hello_; }

  Result<ReceivedFrame> Receive(Deadline deadline) override {
    while (true) {
      const std::shared_ptr<BucketReceiver> inner = inner_.get();
      if (inner == nullptr) return PeerLost();
      RETURN_IF_ERROR(SendDueAcks(*inner));
      if (const auto due = held_frames_.TakeDue(clock_.Now())) return HandOut(*due);
      const TimePoint until = std::min({deadline.point(), held_frames_.NextDue(), held_acks_.NextDue()});
      const Result<ReceivedFrame> frame = inner->Receive(Deadline::At(until));
      if (frame.ok()) {
        if (const std::optional<std::uint64_t> now = Pass(*frame)) {
          held_frames_.OnePassed();
          return HandOut(*now);
        }
      } else if (frame.status().code() != StatusCode::kDeadlineExceeded || deadline.Passed(clock_)) {
        return frame.status();
      }
    }
  }

  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override {
    const auto copy = copies_.find(frame.handle);
    if (copy == copies_.end()) return Status::InvalidArgument("not_outstanding", "the frame was given back before");
    const std::optional<ReceivedFrame> original = copy->second.original;
    copies_.erase(copy);
    const std::shared_ptr<BucketReceiver> inner = inner_.get();
    if (inner == nullptr) return PeerLost();
    if (!original) return OkStatus();
    return PassAck(*inner, HeldAck{*original, ack});
  }

  void Cancel() override {
    if (const std::shared_ptr<BucketReceiver> inner = inner_.get()) inner->Cancel();
  }

 private:
  struct alignas(64) Block {
    std::array<std::byte, 64> bytes;
  };
  // Every frame is handed out as a copy: it can be damaged, and it stays when the route is cut.
  struct Copy {
    std::vector<Block> memory;
    std::size_t bytes = 0;
    std::vector<BoxView> payload;           // where it is not in the frame; never damaged
    std::optional<ReceivedFrame> original;  // none for the second copy of a duplicate
    std::span<std::byte> span() { return {memory.empty() ? nullptr : memory.front().bytes.data(), bytes}; }
  };
  struct HeldAck {
    ReceivedFrame frame;
    BucketAck ack;
  };

  std::uint64_t MakeCopy(const ReceivedFrame& frame, std::optional<ReceivedFrame> original) {
    Copy copy{std::vector<Block>((frame.bytes.size() + 63) / 64),
              frame.bytes.size(),
              {frame.payload.begin(), frame.payload.end()},
              original};
    std::ranges::copy(frame.bytes, copy.span().begin());
    copies_.emplace(next_handle_, std::move(copy));
    return next_handle_++;
  }

  ReceivedFrame HandOut(std::uint64_t handle) {
    Copy& copy = copies_.at(handle);
    return {copy.span(), handle, copy.payload};
  }

  // What arrives now of a frame that the inner end received, if anything does.
  std::optional<std::uint64_t> Pass(const ReceivedFrame& frame) {
    const std::optional<Fault> fault = frame_faults_.Next();
    if (fault && fault->kind == FaultKind::kDrop) return std::nullopt;
    if (fault && fault->kind == FaultKind::kCut) {
      inner_.Cut();
      return std::nullopt;
    }
    const std::uint64_t handle = MakeCopy(frame, frame);
    if (!fault) return handle;
    Copy& copy = copies_.at(handle);
    if (fault->kind == FaultKind::kCorrupt) FlipBit(copy.span(), fault->offset);
    if (fault->kind == FaultKind::kTruncate) copy.bytes = PlaceIn(copy.bytes, fault->offset);
    if (fault->kind == FaultKind::kDuplicate) {
      // This frame itself passes next, and is not one of those that the repetition waits for.
      Fault repeat = *fault;
      ++repeat.behind;
      held_frames_.Hold(MakeCopy(frame, std::nullopt), repeat, clock_.Now());
    }
    if (fault->kind == FaultKind::kHold) {
      held_frames_.Hold(handle, *fault, clock_.Now());
      return std::nullopt;
    }
    return handle;
  }

  Status PassAck(BucketReceiver& inner, HeldAck passing) {
    const std::optional<Fault> fault = ack_faults_.Next();
    if (fault && fault->kind == FaultKind::kDrop) return OkStatus();
    if (fault && fault->kind == FaultKind::kCut) {
      inner_.Cut();
      return PeerLost();
    }
    if (fault && fault->kind == FaultKind::kHold) {
      held_acks_.Hold(passing, *fault, clock_.Now());
      return OkStatus();
    }
    if (fault && fault->kind == FaultKind::kCorrupt) passing.ack.verdict = BucketVerdict::kDamaged;
    RETURN_IF_ERROR(inner.Acknowledge(passing.frame, passing.ack));
    held_acks_.OnePassed();
    return SendDueAcks(inner);
  }

  Status SendDueAcks(BucketReceiver& inner) {
    while (const auto due = held_acks_.TakeDue(clock_.Now())) RETURN_IF_ERROR(inner.Acknowledge(due->frame, due->ack));
    return OkStatus();
  }

  const RouteHello hello_;
  Clock& clock_;
  Cuttable<BucketReceiver> inner_;
  FaultCounter frame_faults_;
  FaultCounter ack_faults_;
  std::map<std::uint64_t, Copy> copies_;  // by our handle, until given back
  std::uint64_t next_handle_ = 0;
  HeldBack<std::uint64_t> held_frames_;
  HeldBack<HeldAck> held_acks_;
};

class FaultySender final : public BucketSender {
 public:
  FaultySender(std::unique_ptr<BucketSender> inner, const FaultPlan& plan)
      : frame_bytes_(inner->frame_bytes()),
        credits_(inner->credits()),
        wants_checksum_(inner->wants_checksum()),
        inner_(std::move(inner)),
        frame_faults_(plan.frames),
        ack_faults_(plan.acks) {}

  std::int64_t frame_bytes() const override { return frame_bytes_; }
  std::int32_t credits() const override { return credits_; }
  bool wants_checksum() const override { return wants_checksum_; }

  bool HasCredit() const override {
    const std::shared_ptr<BucketSender> inner = inner_.get();
    return inner == nullptr || inner->HasCredit();
  }

  std::span<std::byte> Acquire() override {
    if (const std::shared_ptr<BucketSender> inner = inner_.get()) return acquired_ = inner->Acquire();
    after_cut_.resize(static_cast<std::size_t>(frame_bytes_));
    return after_cut_;
  }

  Status Send(std::size_t bytes) override {
    const std::shared_ptr<BucketSender> inner = inner_.get();
    if (inner == nullptr) return PeerLost();
    const std::optional<Fault> fault = frame_faults_.Next();
    if (fault && fault->kind == FaultKind::kCut) {
      inner_.Cut();
      return PeerLost();
    }
    if (fault && fault->kind == FaultKind::kCorrupt) FlipBit(acquired_.first(bytes), fault->offset);
    if (fault && fault->kind == FaultKind::kTruncate) bytes = PlaceIn(bytes, fault->offset);
    return inner->Send(bytes);
  }

  Result<BucketAck> NextAck(Deadline deadline) override {
    while (true) {
      const std::shared_ptr<BucketSender> inner = inner_.get();
      if (inner == nullptr) return PeerLost();
      ASSIGN_OR_RETURN(BucketAck ack, inner->NextAck(deadline));
      const std::optional<Fault> fault = ack_faults_.Next();
      if (fault && fault->kind == FaultKind::kDrop) continue;
      if (fault && fault->kind == FaultKind::kCut) {
        inner_.Cut();
        continue;
      }
      if (fault && fault->kind == FaultKind::kCorrupt) ack.verdict = BucketVerdict::kDamaged;
      return ack;
    }
  }

  void Cancel() override {
    if (const std::shared_ptr<BucketSender> inner = inner_.get()) inner->Cancel();
  }

 private:
  const std::int64_t frame_bytes_;
  const std::int32_t credits_;
  const bool wants_checksum_;
  Cuttable<BucketSender> inner_;
  FaultCounter frame_faults_;
  FaultCounter ack_faults_;
  std::span<std::byte> acquired_;
  std::vector<std::byte> after_cut_;  // what Acquire gives out when nothing can be sent any more
};

// The plan as it applies to one route.
FaultPlan PlanFor(const FaultPlan& plan, Route route) {
  return !plan.route || *plan.route == route ? plan : FaultPlan{};
}

std::string TextOf(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) {
    text += fmt::format(" {}@{}", kFaultNames[static_cast<std::size_t>(fault.kind)], fault.at);
    if (fault.offset != 0) text += fmt::format("[{}]", fault.offset);
  }
  return text.empty() ? " none" : text;
}

}  // namespace

FaultPlan RandomFaultPlan(std::uint64_t seed, std::int64_t frame_count, double probability,
                          const std::vector<FaultKind>& kinds) {
  std::mt19937_64 random(seed);
  FaultPlan plan;
  for (std::int64_t at = 0; at < frame_count; ++at) {
    // Numbers are drawn by hand: the standard's distributions differ between libraries.
    const double chance = static_cast<double>(random() >> 11) * 0x1.0p-53;
    if (chance >= probability || kinds.empty()) continue;
    Fault fault{.kind = kinds[random() % kinds.size()], .at = at};
    fault.offset = static_cast<std::int64_t>(random() % 4096);
    fault.behind = 1 + static_cast<int>(random() % 3);
    plan.frames.push_back(fault);
  }
  return plan;
}

std::string ToString(const FaultPlan& plan) {
  return fmt::format("frames:{}; acks:{}", TextOf(plan.frames), TextOf(plan.acks));
}

Result<std::unique_ptr<BucketReceiver>> FaultyListener::Accept(std::uint64_t connection, Route route,
                                                               Deadline deadline) {
  ASSIGN_OR_RETURN(auto inner, inner_.Accept(connection, route, deadline));
  return std::unique_ptr<BucketReceiver>(
      std::make_unique<FaultyReceiver>(std::move(inner), PlanFor(plan_, route), clock_));
}

FaultyDialer::FaultyDialer(TransportDialer& inner, FaultPlan plan, int refused_dials)
    : inner_(inner), plan_(std::move(plan)), refused_dials_(refused_dials) {
  const auto is_for_receivers = [](const Fault& fault) {
    return fault.kind == FaultKind::kHold || fault.kind == FaultKind::kDuplicate;
  };
  CHECK(std::ranges::none_of(plan_.frames, is_for_receivers) && std::ranges::none_of(plan_.acks, is_for_receivers));
  CHECK(std::ranges::count(plan_.frames, FaultKind::kDrop, &Fault::kind) == 0);
}

Result<std::unique_ptr<BucketSender>> FaultyDialer::Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                         Deadline deadline) {
  if (refused_dials_.fetch_sub(1) > 0) return Status::Unavailable("peer_unreachable", "a test refuses the dial");
  ASSIGN_OR_RETURN(auto inner, inner_.Dial(endpoint, hello, deadline));
  return std::unique_ptr<BucketSender>(std::make_unique<FaultySender>(std::move(inner), PlanFor(plan_, hello.route)));
}

}  // namespace bascule
