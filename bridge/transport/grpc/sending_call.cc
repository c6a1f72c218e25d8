#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "bascule/v1/transfer.grpc.pb.h"  // protobuf messages as gRPC messages
#include "base/grpc/grpc_status.h"
#include "base/mutex.h"
#include "base/start_worker.h"
#include "bridge/transport/credits.h"
#include "bridge/transport/grpc/frame_codec_internal.h"
#include "bridge/transport/grpc/sending_call_internal.h"
#include "bridge/transport/mailbox.h"

namespace bascule {
namespace {

constexpr std::chrono::milliseconds kPatience{200};  // with gRPC, to let go of a call
constexpr const char* kRouteMethod = "/bascule.v1.Transfer/Route";

// The call behind a sender. gRPC's threads run the reactions, On...; the sender's thread hands messages in.
//
// Its owner waits until it is done and then lets go of it, on a thread that is not gRPC's: the call's context holds the
// channel, gRPC ends the threads of its callbacks with the last channel that uses them, and one of them cannot end
// itself.
class SendingCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::Ack> {
 public:
  static std::shared_ptr<SendingCall> Start(const std::shared_ptr<grpc::Channel>& channel, const RouteHello& hello,
                                            Clock& clock) {
    auto call = std::shared_ptr<SendingCall>(new SendingCall(hello.credits, clock));
    grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::Ack> stub(channel);
    stub.PrepareBidiStreamingCall(&call->context_, kRouteMethod, grpc::StubOptions(), call.get());
    // Held until End: the sender's thread may start a write at any time before.
    call->AddHold();
    v1::Frame first;
    *first.mutable_hello() = ToProto(hello);
    CHECK(call->Write(Encode(first)));
    call->StartRead(&call->ack_);
    call->StartCall();
    return call;
  }

  // False once the call has ended.
  bool Write(grpc::ByteBuffer message) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (ended_) return false;
    waiting_.push_back(std::move(message));
    WriteNext();
    return true;
  }

  void Close() {
    context_.TryCancel();
    End();
  }

  // After Close. Cancelling is local, so gRPC lets go of the call whatever the peer does, but not always soon.
  void WaitDone() {
    while (!IsDoneBy(Clock::Real().Now() + std::chrono::seconds(1))) continue;
  }
  bool IsDoneBy(TimePoint when) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!done_ && Clock::Real().WaitUntil(done_changed_, mu_, when)) continue;
    return done_;
  }

  Mailbox<v1::RouteOpened>& opened() { return opened_; }
  Mailbox<v1::FrameAck>& acks() { return acks_; }

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    const bool kept = ack_.has_opened() ? opened_.Push(ack_.opened()) : acks_.Push(ack_.frame());
    if (kept) return StartRead(&ack_);
    Close();  // More acknowledgements than frames.
  }

  void OnWriteDone(bool ok) override EXCLUDES(mu_) {
    MutexLock lock(mu_);
    writing_ = false;
    current_.Clear();
    if (ok && !ended_) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    Status why = FromGrpc(status);
    if (why.ok() || why.reason() == "peer_lost") why = Status::Unavailable("peer_unreachable", why.message());
    acks_.Close(Status::Unavailable("peer_lost", why.ToString()));
    opened_.Close(std::move(why));
    MutexLock lock(mu_);
    done_ = true;
    done_changed_.NotifyAll();  // Whoever waits may destroy the call once the lock is free: nothing follows.
  }

 private:
  SendingCall(std::int32_t credits, Clock& clock) : opened_(1, clock), acks_(credits, clock) {}

  void End() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (std::exchange(ended_, true)) return;
    waiting_.clear();
    RemoveHold();
  }

  void WriteNext() REQUIRES(mu_) {
    if (writing_ || waiting_.empty()) return;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    StartWrite(&current_);
  }

  grpc::ClientContext context_;
  v1::Ack ack_;
  Mailbox<v1::RouteOpened> opened_;
  Mailbox<v1::FrameAck> acks_;
  Mutex mu_;
  std::deque<grpc::ByteBuffer> waiting_ GUARDED_BY(mu_);
  grpc::ByteBuffer current_;  // gRPC's while writing_
  bool writing_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;
  CondVar done_changed_;
  bool done_ GUARDED_BY(mu_) = false;
};

// Calls that gRPC has not let go of. Where a connection does not take its bytes (a wire is pulled) gRPC waits for it,
// for up to ten seconds, on the thread that would end the call: whoever closes a route does not wait along.
class LateCalls {
 public:
  static LateCalls& Instance() {
    static auto* const calls = new LateCalls();  // stays, as gRPC does
    return *calls;
  }

  void Take(const std::shared_ptr<SendingCall>& call) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::erase_if(waiting_, [](const Waiting& one) { return one.call.expired(); });
    auto worker = StartWorker("late_call", [call](const std::stop_token&) { call->WaitDone(); });
    if (!worker.ok()) return call->WaitDone();
    waiting_.push_back({call, *std::move(worker)});
  }

 private:
  struct Waiting {
    std::weak_ptr<SendingCall> call;  // the worker's, while it waits
    Worker worker;
  };
  Mutex mu_;
  std::list<Waiting> waiting_ GUARDED_BY(mu_);
};

class GrpcSender final : public BucketSender {
 public:
  GrpcSender(const std::shared_ptr<grpc::Channel>& channel, const RouteHello& hello, FrameArena arena, Clock& clock)
      : hello_(hello),
        arena_(std::make_shared<const FrameArena>(std::move(arena))),
        call_(SendingCall::Start(channel, hello, clock)),
        credits_(hello.credits) {}
  ~GrpcSender() override {
    call_->Close();
    if (!call_->IsDoneBy(Clock::Real().Now() + kPatience)) LateCalls::Instance().Take(call_);
  }

  // Waits until the peer has opened the route.
  Status WaitOpened(Deadline deadline) { return call_->opened().Pop(deadline).status(); }

  std::int64_t frame_bytes() const override { return hello_.frame_bytes; }
  std::int32_t credits() const override { return hello_.credits; }
  bool wants_checksum() const override { return true; }
  bool HasCredit() const override { return credits_.AnyFree(); }

  std::span<std::byte> Acquire() override {
    acquired_ = credits_.Next();
    return arena_->frame(*acquired_);
  }

  Status Send(std::size_t bytes) override {
    CHECK(acquired_.has_value() && std::cmp_less_equal(bytes, hello_.frame_bytes));
    const std::uint32_t index = *std::exchange(acquired_, std::nullopt);
    CHECK(credits_.Take(index));
    std::span<std::byte> rest = arena_->frame(index).first(bytes);
    do {
      const std::span<std::byte> piece = rest.first(std::min(rest.size(), kPieceBytes));
      if (!call_->Write(EncodePiece(index, bytes, piece, arena_))) {
        return Status::Unavailable("peer_lost", "the call has ended");
      }
      rest = rest.subspan(piece.size());
    } while (!rest.empty());
    return OkStatus();
  }

  Result<BucketAck> NextAck(Deadline deadline) override {
    RETURN_IF_ERROR(broken_);
    ASSIGN_OR_RETURN(const v1::FrameAck proto, call_->acks().Pop(deadline));
    Result<BucketAck> ack = FromProto(proto);
    if (!ack.ok()) return Break(ack.status());
    if (!credits_.Return(proto.index())) {
      return Break(Status::DataLoss("bad_ack", fmt::format("frame {} is not out", proto.index())));
    }
    return ack;
  }

  void Cancel() override { call_->acks().Cancel(); }

 private:
  Status Break(Status why) {
    broken_ = std::move(why);
    call_->Close();
    return broken_;
  }

  const RouteHello hello_;
  const std::shared_ptr<const FrameArena> arena_;  // shared with messages that gRPC still holds
  const std::shared_ptr<SendingCall> call_;
  Credits credits_;
  std::optional<std::uint32_t> acquired_;
  Status broken_;
};

}  // namespace

Result<std::unique_ptr<BucketSender>> OpenGrpcRoute(std::shared_ptr<grpc::Channel> channel, const RouteHello& hello,
                                                    Deadline deadline, Clock& clock) {
  ASSIGN_OR_RETURN(FrameArena arena, FrameArena::Anonymous(hello.frame_bytes, hello.credits));
  auto sender = std::make_unique<GrpcSender>(channel, hello, std::move(arena), clock);
  RETURN_IF_ERROR(sender->WaitOpened(deadline));
  return std::unique_ptr<BucketSender>(std::move(sender));
}

}  // namespace bascule
