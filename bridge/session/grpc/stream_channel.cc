#include <algorithm>

#include "bascule/v1/weight_sync.pb.h"
#include "base/start_worker.h"
#include "bridge/session/grpc/session_codec.h"
#include "bridge/session/grpc/stream_channel_internal.h"

namespace bascule {
namespace {

constexpr std::size_t kFrameBytes = std::size_t{1} << 20;
// The protocol takes turns: more than this means a peer that does not keep to it. A message waits alone, if need be.
constexpr std::size_t kInboxMessages = 64;
constexpr std::size_t kInboxBytes = std::size_t{4} << 20;
constexpr std::size_t kOutboxBytes = 2 * kMaxSessionMessageBytes;
constexpr Duration kLinger = std::chrono::seconds(1);
constexpr Duration kLookAgain = std::chrono::seconds(1);

}  // namespace

StreamChannel::StreamChannel(std::unique_ptr<FrameStream> stream, Clock& clock)
    : stream_(std::move(stream)), clock_(clock), peer_(stream_->peer()) {}

Result<std::unique_ptr<StreamChannel>> StreamChannel::Open(std::unique_ptr<FrameStream> stream, Clock& clock) {
  auto channel = std::unique_ptr<StreamChannel>(new StreamChannel(std::move(stream), clock));
  if (Status started = channel->Start(); !started.ok()) {
    channel->Cancel();
    return started;
  }
  return channel;
}

Status StreamChannel::Start() {
  ASSIGN_OR_RETURN(reader_, StartWorker("control_read", [this](std::stop_token) { ReadFrames(); }));
  ASSIGN_OR_RETURN(writer_, StartWorker("control_write", [this](std::stop_token) { WriteMessages(); }));
  return OkStatus();
}

StreamChannel::~StreamChannel() {
  {
    MutexLock lock(mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  WaitForTheEnd();
  stream_->Cancel();
  writer_.Join();
  reader_.Join();
}

// A peer that is told (by the end of our writes) closes its own end; one that is stuck is cut off.
void StreamChannel::WaitForTheEnd() {
  const Deadline patience = Deadline::After(Clock::Real(), kLinger);
  MutexLock lock(mu_);
  while (!cancelled_ && !(read_over_ && write_over_)) {
    if (!Clock::Real().WaitUntil(changed_, mu_, patience.point())) return;
  }
}

Status StreamChannel::Send(const SessionMessage& message) {
  std::string bytes = EncodeSessionMessage(message);
  if (bytes.size() > kMaxSessionMessageBytes) {
    return Status::InvalidArgument("bad_message", fmt::format("{} of {} bytes, most={}", MessageName(message),
                                                              bytes.size(), kMaxSessionMessageBytes));
  }
  MutexLock lock(mu_);
  if (cancelled_) return Status::Unavailable("peer_lost", peer_);
  if (ended_) return lost_;
  // The stream has ended, and the reader is about to learn why: so does whoever receives.
  if (write_over_) return OkStatus();
  if (outbox_bytes_ + bytes.size() > kOutboxBytes) {
    return Status::Unavailable("peer_lost", fmt::format("{} does not read", peer_));
  }
  outbox_bytes_ += bytes.size();
  outbox_.push_back(std::move(bytes));
  changed_.NotifyAll();
  return OkStatus();
}

Result<SessionMessage> StreamChannel::Receive(Deadline deadline) {
  MutexLock lock(mu_);
  while (true) {
    if (cancelled_ || deaf_) return Status::Cancelled("cancelled", "the control channel was cancelled here");
    if (!inbox_.empty()) {
      Result<SessionMessage> message = std::move(inbox_.front().message);
      inbox_bytes_ -= inbox_.front().bytes;
      inbox_.pop_front();
      changed_.NotifyAll();
      return message;
    }
    if (read_over_) return lost_;
    if (!clock_.WaitUntil(changed_, mu_, deadline.point()) && inbox_.empty()) {
      return Status::DeadlineExceeded("deadline", fmt::format("no control message from {} in time", peer_));
    }
  }
}

void StreamChannel::StopReceiving() {
  MutexLock lock(mu_);
  deaf_ = true;
  changed_.NotifyAll();
}

void StreamChannel::Cancel() {
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    changed_.NotifyAll();
  }
  stream_->Cancel();
}

// After a message that is none, nothing more is read, but answers still go out.
void StreamChannel::ReadFrames() {
  Status why;
  bool ended = false;
  std::string bytes;
  while (why.ok()) {
    const Status read = ReadMessage(&bytes);
    ended = read.code() == StatusCode::kUnavailable;
    why = ended ? WhyEnded() : Put(read.ok() ? DecodeSessionMessage(bytes) : read, bytes.size());
  }
  MutexLock lock(mu_);
  lost_ = std::move(why);
  ended_ = ended;
  read_over_ = true;
  changed_.NotifyAll();
}

Status StreamChannel::WhyEnded() {
  const Status why = stream_->Finish();
  if (!why.ok() && why.code() != StatusCode::kCancelled) return why;
  return Status::Unavailable("peer_lost", fmt::format("{} closed the control channel", peer_));
}

// Unavailable at the end of the stream; DataLoss "bad_message" when the message outgrows its bound.
Status StreamChannel::ReadMessage(std::string* message) {
  message->clear();
  v1::SessionFrame frame;
  while (stream_->Read(&frame)) {
    if (frame.data().size() > kFrameBytes || message->size() + frame.data().size() > kMaxSessionMessageBytes) {
      return Status::DataLoss("bad_message", fmt::format("a message of more than {} bytes, or a frame of more than {}",
                                                         kMaxSessionMessageBytes, kFrameBytes));
    }
    message->append(frame.data());
    if (frame.last()) return OkStatus();
  }
  return Status::Unavailable("peer_lost");
}

Status StreamChannel::Put(Result<SessionMessage> message, std::size_t bytes) {
  Status status = message.status();
  MutexLock lock(mu_);
  while ((inbox_.size() >= kInboxMessages || inbox_bytes_ > kInboxBytes) && !cancelled_ && !closing_) {
    clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
  }
  inbox_.push_back({std::move(message), bytes});
  inbox_bytes_ += bytes;
  changed_.NotifyAll();
  return status;
}

void StreamChannel::WriteMessages() {
  while (true) {
    std::string message;
    {
      MutexLock lock(mu_);
      while (outbox_.empty() && !closing_ && !cancelled_ && !ended_) {
        clock_.WaitUntil(changed_, mu_, clock_.Now() + kLookAgain);
      }
      if (outbox_.empty() || cancelled_ || ended_) break;
      message = std::move(outbox_.front());
      outbox_.pop_front();
      outbox_bytes_ -= message.size();
    }
    if (!WriteMessage(message)) break;
  }
  stream_->WritesDone();
  MutexLock lock(mu_);
  write_over_ = true;
  changed_.NotifyAll();
}

bool StreamChannel::WriteMessage(const std::string& message) {
  v1::SessionFrame frame;
  for (std::size_t at = 0; !frame.last(); at += kFrameBytes) {
    frame.set_data(message.substr(at, kFrameBytes));
    frame.set_last(at + kFrameBytes >= message.size());
    if (!stream_->Write(frame)) return false;
  }
  return true;
}

}  // namespace bascule
