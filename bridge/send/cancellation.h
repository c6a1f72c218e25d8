// A request to stop that says why, so that whoever is stopped can tell its peer. The first reason counts.
//
// Thread-safety: thread-safe.
#pragma once

#include <stop_token>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace bascule {

class Cancellation {
 public:
  void Request(Status why) EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (!why_.ok()) return;
      why_ = std::move(why);
    }
    stop_.request_stop();
  }
  bool requested() const { return stop_.stop_requested(); }
  std::stop_token token() const { return stop_.get_token(); }
  Status why() const EXCLUDES(mu_) {  // OK while nobody has asked
    MutexLock lock(mu_);
    return why_;
  }

 private:
  mutable Mutex mu_;
  Status why_ GUARDED_BY(mu_);
  std::stop_source stop_;
};

// What is looked at by who may be stopped: a Cancellation, or a token that has no reason of its own.
class StopSignal {
 public:
  StopSignal() = default;                                          // never
  StopSignal(std::stop_token token) : token_(std::move(token)) {}  // NOLINT: implicit by design
  StopSignal(const Cancellation& cancellation)                     // NOLINT: implicit by design; borrowed
      : token_(cancellation.token()), cancellation_(&cancellation) {}

  const std::stop_token& token() const { return token_; }
  // `status`, or, where that only says that somebody stopped it, why.
  Status Explain(const Status& status) const {
    if (status.reason() != "cancelled" || cancellation_ == nullptr || !token_.stop_requested()) return status;
    return cancellation_->why();
  }

 private:
  std::stop_token token_;
  const Cancellation* cancellation_ = nullptr;
};

}  // namespace bascule
