#include "bridge/send/control_inbox.h"

#include <utility>

namespace bascule {
namespace {

// A connection is idle for as long as a training step takes; the reader then just asks again.
constexpr Duration kReadTime = std::chrono::hours(1);
// The protocol has at most a few messages under way. A peer that sends more is broken.
constexpr std::size_t kMaxMessages = 16;

}  // namespace

ControlInbox::ControlInbox(std::unique_ptr<ControlChannel> channel, Clock& clock)
    : clock_(clock),
      channel_(std::move(channel)),
      reader_("control-inbox", [this](std::stop_token stop) { ReadUntilLost(std::move(stop)); }) {}

ControlInbox::~ControlInbox() {
  reader_.RequestStop();
  finish_sending_ ? channel_->StopReceiving() : channel_->Cancel();
  reader_.Join();
}

Status ControlInbox::Send(const SessionMessage& message) {
  const Status sent = channel_->Send(message);
  if (sent.ok()) return sent;
  MutexLock lock(mu_);
  return lost_.ok() ? sent : lost_;
}

Result<std::optional<SessionMessage>> ControlInbox::Next(Deadline deadline, std::stop_token stop,
                                                         const std::function<bool()>& done) {
  std::stop_callback wake(stop, [this] { Wake(); });
  MutexLock lock(mu_);
  while (true) {
    if (!messages_.empty()) {
      SessionMessage message = std::move(messages_.front());
      messages_.pop_front();
      return std::optional<SessionMessage>(std::move(message));
    }
    if (done && done()) return std::optional<SessionMessage>();
    if (!lost_.ok()) return lost_;
    if (stop.stop_requested()) return Status::Cancelled("cancelled", "the publisher stopped it");
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", "no answer in time");
    clock_.WaitUntil(changed_, mu_, deadline.point());
  }
}

void ControlInbox::Wake() {
  // With the lock, so that what changed is not missed between a test of `done` and the wait.
  MutexLock lock(mu_);
  changed_.NotifyAll();
}

bool ControlInbox::Stands() const {
  MutexLock lock(mu_);
  return lost_.ok();
}

bool ControlInbox::Quiet() const {
  MutexLock lock(mu_);
  return lost_.ok() && messages_.empty();
}

void ControlInbox::ReadUntilLost(std::stop_token stop) {
  while (!stop.stop_requested()) {
    Result<SessionMessage> received = channel_->Receive(Deadline::After(clock_, kReadTime));
    if (!received.ok() && received.status().code() == StatusCode::kDeadlineExceeded) continue;
    if (Put(std::move(received))) continue;
    if (!stop.stop_requested()) channel_->Cancel();
    return;
  }
}

bool ControlInbox::Put(Result<SessionMessage> received) {
  MutexLock lock(mu_);
  if (received.ok() && messages_.size() == kMaxMessages) {
    received = Status::DataLoss("bad_message", fmt::format("more than {} messages unasked", kMaxMessages));
  }
  changed_.NotifyAll();
  if (!received.ok()) {
    lost_ = received.status();
    return false;
  }
  messages_.push_back(std::move(*received));
  return true;
}

}  // namespace bascule
