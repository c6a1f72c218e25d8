#include "bridge/transport/shm/route.h"

#include <optional>
#include <utility>

#include "bridge/transport/credits.h"
#include "bridge/transport/shm/messages.h"

namespace bascule {
namespace {

// A peer that breaks the rules is not read any further: the first such error is the last word of the route.
class RouteSocket {
 public:
  RouteSocket(MessageSocket socket, Clock& clock) : socket_(std::move(socket)), clock_(clock) {}

  template <typename Message>
  Status Send(const Message& message) {
    return socket_.Send(BytesOf(message));
  }
  template <typename Message>
  Result<Message> Receive(Deadline deadline) {
    RETURN_IF_ERROR(broken_);
    Message message;
    RETURN_IF_ERROR(socket_.Receive(std::as_writable_bytes(std::span(&message, 1)), deadline, clock_));
    return message;
  }
  Status Break(Status why) {
    broken_ = std::move(why);
    return broken_;
  }
  void Cancel() { socket_.Cancel(); }
  int fd() const { return socket_.fd(); }

 private:
  MessageSocket socket_;
  Clock& clock_;
  Status broken_;
};

class Sender final : public ShmSender {
 public:
  Sender(const RouteHello& hello, FrameArena arena, MessageSocket socket, Clock& clock)
      : hello_(hello), arena_(std::move(arena)), socket_(std::move(socket), clock), credits_(hello.credits) {}

  std::int64_t frame_bytes() const override { return hello_.frame_bytes; }
  std::int32_t credits() const override { return hello_.credits; }
  bool wants_checksum() const override { return false; }
  bool HasCredit() const override { return credits_.AnyFree(); }

  std::span<std::byte> Acquire() override {
    if (!was_put_by_) acquired_ = credits_.Next();
    return arena_.frame(*acquired_);
  }

  Status Send(std::size_t bytes) override {
    CHECK(acquired_.has_value() && std::cmp_less_equal(bytes, hello_.frame_bytes));
    if (!std::exchange(was_put_by_, false)) CHECK(credits_.Take(*acquired_));
    return socket_.Send(ShmFrame{*std::exchange(acquired_, std::nullopt), bytes});
  }

  Result<std::uint32_t> PutBy(DeviceStream& /*filling*/) override {
    CHECK(acquired_.has_value() && !was_put_by_ && credits_.Take(*acquired_));
    return *std::exchange(acquired_, std::nullopt);
  }

  void TakeUp(std::uint32_t number) override {
    CHECK(!acquired_.has_value());
    acquired_ = number;
    was_put_by_ = true;
  }

  Result<BucketAck> NextAck(Deadline deadline) override {
    ASSIGN_OR_RETURN(const ShmAck message, socket_.Receive<ShmAck>(deadline));
    Result<BucketAck> ack = FromShm(message);
    if (!ack.ok()) return socket_.Break(ack.status());
    if (!credits_.Return(message.index)) {
      return socket_.Break(Status::DataLoss("bad_ack", fmt::format("frame {} is not out", message.index)));
    }
    returned_ = message.index;
    return ack;
  }

  void Cancel() override { socket_.Cancel(); }

  std::uint32_t acquired() const override {
    CHECK(acquired_.has_value());
    return *acquired_;
  }
  std::uint32_t returned() const override { return returned_; }
  int fd() const override { return socket_.fd(); }

 private:
  const RouteHello hello_;
  const FrameArena arena_;
  RouteSocket socket_;
  Credits credits_;
  std::optional<std::uint32_t> acquired_;
  bool was_put_by_ = false;  // the acquired frame, which has its credit already
  std::uint32_t returned_ = 0;
};

class Receiver final : public ShmReceiver {
 public:
  Receiver(const RouteHello& hello, FrameArena arena, MessageSocket socket, Clock& clock)
      : hello_(hello), arena_(std::move(arena)), socket_(std::move(socket), clock), credits_(hello.credits) {}

  const RouteHello& hello() const override { return hello_; }

  Result<ReceivedFrame> Receive(Deadline deadline) override {
    Result<ShmFrame> frame = socket_.Receive<ShmFrame>(deadline);
    if (!frame.ok()) return WhyNoFrame(frame.status());
    if (frame->bytes > static_cast<std::uint64_t>(hello_.frame_bytes) || !credits_.Take(frame->index)) {
      return socket_.Break(Status::DataLoss(
          "bad_frame",
          fmt::format("frame {} with {} bytes: no such frame, out already, or too large", frame->index, frame->bytes)));
    }
    return ReceivedFrame{arena_.frame(frame->index).first(frame->bytes), frame->index};
  }

  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override {
    if (!credits_.Return(frame.handle)) {
      return Status::InvalidArgument("not_outstanding", fmt::format("frame {}", frame.handle));
    }
    return socket_.Send(ToShm(frame.handle, ack));
  }

  void Cancel() override { socket_.Cancel(); }
  int fd() const override { return socket_.fd(); }

 private:
  Status WhyNoFrame(const Status& status) {
    if (status.code() != StatusCode::kDataLoss) return status;
    return socket_.Break(Status::DataLoss("bad_frame", status.message()));
  }

  const RouteHello hello_;
  const FrameArena arena_;
  RouteSocket socket_;
  Credits credits_;
};

}  // namespace

std::unique_ptr<ShmSender> MakeShmSender(const RouteHello& hello, FrameArena arena, MessageSocket socket,
                                         Clock& clock) {
  return std::make_unique<Sender>(hello, std::move(arena), std::move(socket), clock);
}

std::unique_ptr<ShmReceiver> MakeShmReceiver(const RouteHello& hello, FrameArena arena, MessageSocket socket,
                                             Clock& clock) {
  return std::make_unique<Receiver>(hello, std::move(arena), std::move(socket), clock);
}

}  // namespace bascule
