// The receiving half of a control channel: a thread reads, and whoever waits hears of messages, of the peer's end and
// of its own work alike. So an Abort stops a running transfer at once, and a dead peer is noticed between sessions too.
//
// Thread-safety: thread-safe; one waiter at a time.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/session/control.h"

namespace bascule {

class ControlInbox {
 public:
  ControlInbox(std::unique_ptr<ControlChannel> channel, Clock& clock);
  ~ControlInbox();  // closes the channel at once, or as FinishSending says

  // Unavailable "peer_lost", or why the channel ended where it says that: a peer that refuses a connection may have
  // done so before anything was sent
  Status Send(const SessionMessage& message) EXCLUDES(mu_);

  // The next message, or nothing once `done` is true (asked whenever Wake is called; absent: never). Messages that have
  // arrived come before everything else, so that a peer's reason is heard before the fact that it is gone.
  //
  // Unavailable "peer_lost"; DataLoss "bad_message"; Cancelled "cancelled" (`stop`); DeadlineExceeded "deadline"
  Result<std::optional<SessionMessage>> Next(Deadline deadline, std::stop_token stop,
                                             const std::function<bool()>& done = {}) EXCLUDES(mu_);
  void Wake() EXCLUDES(mu_);

  // Closing then lets what was sent go out first, for as long as the channel is ready to wait for that.
  void FinishSending() { finish_sending_ = true; }

  // The peer is there.
  bool Stands() const EXCLUDES(mu_);
  // The peer is there and has said nothing that nobody waited for: a new session can begin.
  bool Quiet() const EXCLUDES(mu_);

 private:
  void ReadUntilLost(std::stop_token stop) EXCLUDES(mu_);
  // False when nothing more can come.
  bool Put(Result<SessionMessage> received) EXCLUDES(mu_);

  Clock& clock_;
  const std::unique_ptr<ControlChannel> channel_;
  mutable Mutex mu_;  // Guards the queue; never held across a call of the channel.
  CondVar changed_;
  std::deque<SessionMessage> messages_ GUARDED_BY(mu_);
  Status lost_ GUARDED_BY(mu_);
  std::atomic<bool> finish_sending_ = false;
  Worker reader_;
};

}  // namespace bascule
