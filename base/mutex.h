// Mutex, lock and condition variable with clang's thread-safety annotations: `cmake --preset thread-safety` names an
// unguarded access at compile time.
//
// Thread-safety: thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define BASCULE_ANNOTATION(x) __attribute__((x))
#else
#define BASCULE_ANNOTATION(x)
#endif
#define CAPABILITY(x) BASCULE_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY BASCULE_ANNOTATION(scoped_lockable)
#define REQUIRES(...) BASCULE_ANNOTATION(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) BASCULE_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) BASCULE_ANNOTATION(release_capability(__VA_ARGS__))
#define EXCLUDES(...) BASCULE_ANNOTATION(locks_excluded(__VA_ARGS__))
// Abseil, which gRPC brings along, spells these three the same way and means the same.
#ifndef GUARDED_BY
#define GUARDED_BY(x) BASCULE_ANNOTATION(guarded_by(x))
#endif
#ifndef PT_GUARDED_BY
#define PT_GUARDED_BY(x) BASCULE_ANNOTATION(pt_guarded_by(x))
#endif
#ifndef NO_THREAD_SAFETY_ANALYSIS
#define NO_THREAD_SAFETY_ANALYSIS BASCULE_ANNOTATION(no_thread_safety_analysis)
#endif

namespace bascule {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mu_.lock(); }
  void Unlock() RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Waits may wake without a notification: wait in a loop on the condition. A wait with a deadline goes through
// Clock::WaitUntil, so that tests can hold the time.
class CondVar {
 public:
  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  friend class Clock;
  // Returns after a notification, a spurious wake, or `until`.
  void WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point until) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cond_.wait_until(lock, until);
    lock.release();
  }
  std::condition_variable cond_;
};

}  // namespace bascule
