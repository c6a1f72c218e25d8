#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <chrono>
#include <deque>
#include <utility>

#include "base/grpc/grpc_status.h"
#include "base/mutex.h"
#include "bridge/transport/credits.h"
#include "bridge/transport/frame_arena.h"
#include "bridge/transport/grpc/frame_codec_internal.h"
#include "bridge/transport/grpc/receiving_call_internal.h"
#include "bridge/transport/mailbox.h"

namespace bascule {
namespace {

constexpr std::chrono::seconds kLinger{1};  // for a sender to take what is being written when a call ends

struct ArrivedFrame {
  std::uint32_t index = 0;
  std::size_t bytes = 0;
};

Status BadFrame(std::string why) { return Status::DataLoss("bad_frame", std::move(why)); }

// A route's frames on this side: an arena, which of its frames are out, and the one that is arriving.
class ArrivingFrames {
 public:
  ArrivingFrames(const RouteHello& hello, FrameArena arena) : arena_(std::move(arena)), credits_(hello.credits) {}

  // Copies a piece to its place; the frame when that completes it. Called by one thread.
  //
  // DataLoss "bad_frame"
  Result<std::optional<ArrivedFrame>> TakePiece(grpc::ByteBuffer& message) EXCLUDES(mu_) {
    PieceDecoder decoder(message);
    PieceHead head;
    if (!decoder.ReadHead(head)) return BadFrame("not a piece of a frame");
    if (!arriving_) RETURN_IF_ERROR(Begin(head));
    if (head.index != arriving_->index || head.frame_bytes != arriving_->bytes) {
      return BadFrame(fmt::format("frame {} of {} bytes began before frame {} was complete", head.index,
                                  head.frame_bytes, arriving_->index));
    }
    if (head.piece_bytes > arriving_->bytes - filled_ || (head.piece_bytes == 0 && arriving_->bytes != 0)) {
      return BadFrame(fmt::format("a piece of {} bytes at {} of {}", head.piece_bytes, filled_, arriving_->bytes));
    }
    if (!decoder.ReadPiece(arena_.frame(head.index).subspan(filled_, head.piece_bytes))) {
      return BadFrame("a piece is cut short, or not the last field");
    }
    filled_ += head.piece_bytes;
    if (filled_ < arriving_->bytes) return std::optional<ArrivedFrame>();
    return std::exchange(arriving_, std::nullopt);
  }

  bool Return(std::uint64_t index) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return credits_.Return(index);
  }

  std::span<const std::byte> bytes(const ArrivedFrame& frame) const {
    return arena_.frame(frame.index).first(frame.bytes);
  }

 private:
  Status Begin(const PieceHead& head) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!credits_.Take(head.index)) return BadFrame(fmt::format("frame {}: no such frame, or out already", head.index));
    if (head.frame_bytes > arena_.frame(head.index).size()) {
      return BadFrame(fmt::format("frame {} of {} bytes is too large", head.index, head.frame_bytes));
    }
    arriving_ = ArrivedFrame{head.index, static_cast<std::size_t>(head.frame_bytes)};
    filled_ = 0;
    return OkStatus();
  }

  const FrameArena arena_;
  std::optional<ArrivedFrame> arriving_;
  std::size_t filled_ = 0;
  Mutex mu_;
  Credits credits_ GUARDED_BY(mu_);
};

// The call behind a receiver. gRPC's threads run the reactions, On...; the receiver's thread hands acknowledgements in.
// It keeps itself alive until gRPC has let go of it, so that closing a route waits for nobody.
class ReceivingCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static ReceivingCall* Start(std::shared_ptr<RouteTable> routes, grpc::CallbackServerContext& context, Clock& clock) {
    auto call = std::shared_ptr<ReceivingCall>(new ReceivingCall(std::move(routes), context, clock));
    call->self_ = call;
    call->StartRead(&call->message_);
    return call.get();
  }

  // False once the call has ended.
  bool Write(const v1::Ack& ack) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (ended_) return false;
    waiting_.push_back(Encode(ack));
    WriteNext();
    return true;
  }

  // Ends the call, and tells the sender why: behind the acknowledgement that gRPC is writing, unless the sender does
  // not take that soon.
  void End(const Status& why) EXCLUDES(mu_) {
    frames_.Close(why);
    MutexLock lock(mu_);
    if (std::exchange(ended_, true)) return;
    waiting_.clear();
    status_ = ToGrpc(why);
    if (!writing_) return FinishNow();
    // The alarm is the call's and keeps its function when it has run: that must not keep the call.
    linger_.Set(std::chrono::system_clock::now() + kLinger, [self = self_](bool in_time) mutable {
      const std::shared_ptr<ReceivingCall> call = std::move(self);
      if (in_time) call->CutOff();
    });
  }

  Mailbox<ArrivedFrame>& frames() { return frames_; }
  ArrivingFrames& arriving() { return *arriving_; }

  void OnReadDone(bool ok) override {
    const Status status = !ok ? PeerLost() : arriving_ == nullptr ? Open() : TakePiece();
    message_.Clear();
    if (!status.ok()) return End(status);
    MutexLock lock(mu_);
    if (!ended_) StartRead(&message_);
  }

  void OnWriteDone(bool ok) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    writing_ = false;
    if (ended_) return FinishNow();
    if (ok) WriteNext();
  }

  void OnCancel() override { End(PeerLost()); }

  void OnDone() override {
    linger_.Cancel();
    const std::shared_ptr<ReceivingCall> last = std::move(self_);
  }

 private:
  ReceivingCall(std::shared_ptr<RouteTable> routes, grpc::CallbackServerContext& context, Clock& clock)
      : routes_(std::move(routes)), context_(context), frames_(kMaxCredits, clock) {}

  static Status PeerLost() { return Status::Unavailable("peer_lost", "the sender closed"); }
  Status Open();
  Status TakePiece();

  void FinishNow() REQUIRES(mu_) {
    finished_ = true;
    Finish(status_);
  }

  void CutOff() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!finished_) context_.TryCancel();
  }

  void WriteNext() REQUIRES(mu_) {
    if (writing_ || waiting_.empty()) return;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    StartWrite(&current_);
  }

  const std::shared_ptr<RouteTable> routes_;
  grpc::CallbackServerContext& context_;  // until ended_
  grpc::ByteBuffer message_;
  std::unique_ptr<ArrivingFrames> arriving_;  // once the hello is read
  Mailbox<ArrivedFrame> frames_;
  Mutex mu_;
  std::deque<grpc::ByteBuffer> waiting_ GUARDED_BY(mu_);
  grpc::ByteBuffer current_;  // gRPC's while writing_
  bool writing_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;
  bool finished_ GUARDED_BY(mu_) = false;  // context_ may go at any moment
  grpc::Status status_ GUARDED_BY(mu_);
  grpc::Alarm linger_;
  std::shared_ptr<ReceivingCall> self_;
};

class GrpcReceiver final : public BucketReceiver {
 public:
  GrpcReceiver(const RouteHello& hello, std::shared_ptr<ReceivingCall> call) : hello_(hello), call_(std::move(call)) {}
  ~GrpcReceiver() override { call_->End(Status::Unavailable("peer_lost", "the receiver closed")); }

  const RouteHello& hello() const override { return hello_; }

  Result<ReceivedFrame> Receive(Deadline deadline) override {
    ASSIGN_OR_RETURN(const ArrivedFrame frame, call_->frames().Pop(deadline));
    return ReceivedFrame{call_->arriving().bytes(frame), frame.index};
  }

  Status Acknowledge(const ReceivedFrame& frame, const BucketAck& ack) override {
    if (!call_->arriving().Return(frame.handle)) {
      return Status::InvalidArgument("not_outstanding", fmt::format("frame {}", frame.handle));
    }
    v1::Ack message;
    *message.mutable_frame() = ToProto(frame.handle, ack);
    return call_->Write(message) ? OkStatus() : Status::Unavailable("peer_lost", "the call has ended");
  }

  void Cancel() override { call_->frames().Cancel(); }

 private:
  const RouteHello hello_;
  const std::shared_ptr<ReceivingCall> call_;
};

Status ReceivingCall::Open() {
  const std::optional<RouteHello> hello = DecodeHello(message_);
  if (!hello) return Status::InvalidArgument("bad_route", "the first message is no hello");
  RETURN_IF_ERROR(routes_->Claim(*hello));
  ASSIGN_OR_RETURN(FrameArena arena, FrameArena::Anonymous(hello->frame_bytes, hello->credits));
  arriving_ = std::make_unique<ArrivingFrames>(*hello, std::move(arena));
  v1::Ack opened;
  opened.mutable_opened();
  if (Write(opened)) routes_->Deliver(std::make_unique<GrpcReceiver>(*hello, self_));
  return OkStatus();
}

Status ReceivingCall::TakePiece() {
  ASSIGN_OR_RETURN(const std::optional<ArrivedFrame> frame, arriving_->TakePiece(message_));
  if (frame && !frames_.Push(*frame)) return PeerLost();
  return OkStatus();
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServeGrpcRoute(std::shared_ptr<RouteTable> routes,
                                                                            grpc::CallbackServerContext& context,
                                                                            Clock& clock) {
  return ReceivingCall::Start(std::move(routes), context, clock);
}

}  // namespace bascule
