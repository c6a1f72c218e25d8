// A queue between the two ends of a route, or between a transport's own thread and the end it serves. What is in it
// outlives its writer; a reader waits until something is there, or for one of the three reasons to give up.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace bascule {

template <typename T>
class Mailbox {
 public:
  // Holds at most `capacity` items: credits bound what may be under way.
  Mailbox(std::int32_t capacity, Clock& clock) : capacity_(static_cast<std::size_t>(capacity)), clock_(clock) {}

  // False when it is full, or closed: nobody reads or writes any more.
  [[nodiscard]] bool Push(T item) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!closed_.ok() || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    changed_.NotifyAll();
    return true;
  }

  // Nothing more comes: Pop gives out what is there and then fails with `why`. The first reason stays.
  void Close(Status why) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (closed_.ok()) closed_ = std::move(why);
    changed_.NotifyAll();
  }

  // Pop fails from now on, though items are there.
  void Cancel() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    cancelled_ = true;
    changed_.NotifyAll();
  }

  // Cancelled "cancelled"; DeadlineExceeded "deadline"; what Close was given
  Result<T> Pop(Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (bool waited_enough = false;;) {
      if (cancelled_) return Status::Cancelled("cancelled");
      if (!items_.empty()) break;
      if (!closed_.ok()) return closed_;
      if (waited_enough) return Status::DeadlineExceeded("deadline");
      waited_enough = !clock_.WaitUntil(changed_, mu_, deadline.point());
    }
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  const std::size_t capacity_;
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  std::deque<T> items_ GUARDED_BY(mu_);
  Status closed_ GUARDED_BY(mu_);  // OK while open
  bool cancelled_ GUARDED_BY(mu_) = false;
};

}  // namespace bascule
