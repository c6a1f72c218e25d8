// pthread's functions as this program has them: on a fiber they ask the scheduler, anywhere else they are the C
// library's. So the simulation runs the very object files of the libraries that ship; nothing in them knows of it.
//
// Locks that a library takes inside itself (OpenSSL, the C++ library) stay the C library's: no fiber stops in there.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>

#include "tests/simulation/scheduler.h"

extern "C" {
extern const char __executable_start;
extern const char etext;
}

namespace {

using bascule::TimePoint;
using bascule::simulation::Scheduler;

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

Scheduler* Running() { return Scheduler::Running(); }

// The scheduler, if this program's own code called.
Scheduler* RunningFor(const void* caller) {
  const bool ours =
      caller >= static_cast<const void*>(&__executable_start) && caller < static_cast<const void*>(&etext);
  return ours ? Running() : nullptr;
}

TimePoint PointOf(const timespec& time) {
  return TimePoint(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (Scheduler* const scheduler = RunningFor(__builtin_return_address(0))) {
    scheduler->Lock(mutex);
    return 0;
  }
  static const auto real = Real<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  return real(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (Scheduler* const scheduler = RunningFor(__builtin_return_address(0)))
    return scheduler->TryLock(mutex) ? 0 : EBUSY;
  static const auto real = Real<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  return real(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (Scheduler* const scheduler = RunningFor(__builtin_return_address(0))) {
    scheduler->Unlock(mutex);
    return 0;
  }
  static const auto real = Real<int (*)(pthread_mutex_t*)>("pthread_mutex_unlock");
  return real(mutex);
}

int pthread_cond_wait(pthread_cond_t* cond, pthread_mutex_t* mutex) {
  if (Scheduler* const scheduler = Running()) return scheduler->Wait(cond, mutex, std::nullopt) ? 0 : ETIMEDOUT;
  static const auto real = Real<int (*)(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  return real(cond, mutex);
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  if (Scheduler* const scheduler = Running()) return scheduler->Wait(cond, mutex, PointOf(*until)) ? 0 : ETIMEDOUT;
  static const auto real =
      Real<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>("pthread_cond_clockwait");
  return real(cond, mutex, clock, until);
}

int pthread_cond_signal(pthread_cond_t* cond) noexcept {
  if (Scheduler* const scheduler = Running()) {
    scheduler->Notify(cond, /*all=*/false);
    return 0;
  }
  static const auto real = Real<int (*)(pthread_cond_t*)>("pthread_cond_signal");
  return real(cond);
}

int pthread_cond_broadcast(pthread_cond_t* cond) noexcept {
  if (Scheduler* const scheduler = Running()) {
    scheduler->Notify(cond, /*all=*/true);
    return 0;
  }
  static const auto real = Real<int (*)(pthread_cond_t*)>("pthread_cond_broadcast");
  return real(cond);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  if (Scheduler* const scheduler = Running()) {
    *thread = scheduler->Spawn(body, argument);
    return 0;
  }
  static const auto real = Real<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return real(thread, attributes, body, argument);
}

int pthread_join(pthread_t thread, void** result) {
  if (Scheduler* const scheduler = Running()) {
    scheduler->Join(thread);
    if (result != nullptr) *result = nullptr;
    return 0;
  }
  static const auto real = Real<int (*)(pthread_t, void**)>("pthread_join");
  return real(thread, result);
}

pthread_t pthread_self() noexcept {
  if (const Scheduler* const scheduler = Running()) return scheduler->self();
  static const auto real = Real<pthread_t (*)()>("pthread_self");
  return real();
}

int pthread_setname_np(pthread_t thread, const char* name) noexcept {
  if (Scheduler* const scheduler = Running()) {
    scheduler->NameSelf(thread, name);
    return 0;
  }
  static const auto real = Real<int (*)(pthread_t, const char*)>("pthread_setname_np");
  return real(thread, name);
}

int sched_yield() noexcept {
  if (Scheduler* const scheduler = Running()) {
    scheduler->Yield();
    return 0;
  }
  static const auto real = Real<int (*)()>("sched_yield");
  return real();
}

// The C++ library's atomic waits and semaphores: what they wait for changes when another fiber has run.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (Scheduler* const scheduler = Running(); scheduler != nullptr && number == SYS_futex) {
    if ((arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT) scheduler->Yield();
    return 0;
  }
  static const auto real = Real<long (*)(long, ...)>("syscall");
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

// Identifiers come from here: each schedule mints the same.
ssize_t getrandom(void* buffer, size_t size, unsigned flags) {
  if (Scheduler* const scheduler = Running()) {
    for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
      const std::uint64_t bits = scheduler->RandomBits();
      std::memcpy(static_cast<char*>(buffer) + at, &bits, std::min(sizeof bits, size - at));
    }
    return static_cast<ssize_t>(size);
  }
  static const auto real = Real<ssize_t (*)(void*, size_t, unsigned)>("getrandom");
  return real(buffer, size, flags);
}

}  // extern "C"
