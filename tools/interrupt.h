// Ctrl-C and SIGTERM as a stop token. Made first in main, before any thread, so that every thread has the two signals
// blocked and only the one here takes them. A second Ctrl-C ends the process at once.
//
// Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <stop_token>

#include "base/clock.h"
#include "base/status.h"
#include "base/worker.h"

namespace bascule {

class Interrupt {
 public:
  Interrupt();  // a signal that waits already is taken at once
  ~Interrupt();

  std::stop_token token() const { return stop_.get_token(); }
  bool requested() const { return stop_.stop_requested(); }
  // OK for a server that SIGTERM stopped: that is how it ends; else Cancelled "interrupted".
  Status StopStatusOfServer() const;
  // Waits for either signal.
  void Wait();

 private:
  void TakeSignals();
  void Take(int number);

  std::stop_source stop_;
  std::atomic<int> signal_{0};
  int wake_fd_ = -1;
  Worker worker_;
};

Status InterruptedError();

}  // namespace bascule
