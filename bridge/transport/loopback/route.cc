#include "bridge/transport/loopback/route.h"

#include <optional>
#include <utility>

#include "bridge/transport/credits.h"
#include "bridge/transport/frame_arena.h"
#include "bridge/transport/mailbox.h"

namespace bascule {
namespace {

struct SentFrame {
  std::uint32_t index = 0;
  std::size_t bytes = 0;
};

struct SentAck {
  std::uint64_t index = 0;
  BucketAck ack;
};

// What the ends share; whichever goes last frees it.
struct Channel {
  Channel(const RouteHello& route_hello, FrameArena frame_arena, Clock& clock)
      : hello(route_hello),
        arena(std::move(frame_arena)),
        payload(static_cast<std::size_t>(hello.credits)),
        frames(hello.credits, clock),
        acks(hello.credits, clock) {}

  const RouteHello hello;
  const FrameArena arena;
  std::vector<std::vector<BoxView>> payload;  // per frame, where it holds none; of whoever has the frame
  Mailbox<SentFrame> frames;
  Mailbox<SentAck> acks;
};

Status PeerLost(const char* peer) { return Status::Unavailable("peer_lost", fmt::format("the {} closed", peer)); }

class LoopbackSender final : public BucketSender {
 public:
  explicit LoopbackSender(std::shared_ptr<Channel> channel)
      : channel_(std::move(channel)), credits_(channel_->hello.credits) {}
  ~LoopbackSender() override {
    channel_->frames.Close(PeerLost("sender"));
    channel_->acks.Close(PeerLost("sender"));
  }

  std::int64_t frame_bytes() const override { return channel_->hello.frame_bytes; }
  std::int32_t credits() const override { return channel_->hello.credits; }
  bool wants_checksum() const override { return false; }
  bool HasCredit() const override { return credits_.AnyFree(); }

  std::span<std::byte> Acquire() override {
    acquired_ = credits_.Next();
    return channel_->arena.frame(*acquired_);
  }

  bool TakesViews() const override { return true; }

  Status SendViews(std::size_t bytes, std::vector<BoxView> payload) override {
    CHECK(acquired_.has_value());
    channel_->payload[*acquired_] = std::move(payload);
    return Send(bytes);
  }

  Status Send(std::size_t bytes) override {
    CHECK(acquired_.has_value() && std::cmp_less_equal(bytes, frame_bytes()));
    const std::uint32_t index = *std::exchange(acquired_, std::nullopt);
    CHECK(credits_.Take(index));
    return channel_->frames.Push({index, bytes}) ? OkStatus() : PeerLost("receiver");
  }

  Result<BucketAck> NextAck(Deadline deadline) override {
    ASSIGN_OR_RETURN(const SentAck sent, channel_->acks.Pop(deadline));
    CHECK(credits_.Return(sent.index));
    return sent.ack;
  }

  void Cancel() override { channel_->acks.Cancel(); }

 private:
  const std::shared_ptr<Channel> channel_;
  Credits credits_;
  std::optional<std::uint32_t> acquired_;
};

class LoopbackReceiver final : public BucketReceiver {
 public:
  explicit LoopbackReceiver(std::shared_ptr<Channel> channel)
      : channel_(std::move(channel)), credits_(channel_->hello.credits) {}
  ~LoopbackReceiver() override {
    channel_->frames.Close(PeerLost("receiver"));
    channel_->acks.Close(PeerLost("receiver"));
  }

  const RouteHello& hello() const override { return channel_->hello; }

  Result<ReceivedFrame> Receive(Deadline deadline) override {
    ASSIGN_OR_RETURN(const SentFrame sent, channel_->frames.Pop(deadline));
    CHECK(credits_.Take(sent.index));
    return ReceivedFrame{channel_->arena.frame(sent.index).first(sent.bytes), sent.index,
                         channel_->payload[sent.index]};
  }

  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override {
    if (!credits_.Return(frame.handle)) {
      return Status::InvalidArgument("not_outstanding", fmt::format("frame {}", frame.handle));
    }
    channel_->payload[frame.handle].clear();
    return channel_->acks.Push({frame.handle, ack}) ? OkStatus() : PeerLost("sender");
  }

  void Cancel() override { channel_->frames.Cancel(); }

 private:
  const std::shared_ptr<Channel> channel_;
  Credits credits_;
};

}  // namespace

Result<LoopbackRoute> OpenLoopbackRoute(const RouteHello& hello, Clock& clock) {
  // Frames that only name their payload use a page each.
  ASSIGN_OR_RETURN(FrameArena arena,
                   FrameArena::Anonymous(hello.frame_bytes, hello.credits, FrameArena::Pages::kWhenTouched));
  auto channel = std::make_shared<Channel>(hello, std::move(arena), clock);
  return LoopbackRoute{std::make_unique<LoopbackSender>(channel), std::make_unique<LoopbackReceiver>(channel)};
}

}  // namespace bascule
