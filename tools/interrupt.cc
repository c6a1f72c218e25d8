#include "tools/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "base/mutex.h"
#include "tools/outcome.h"

namespace bascule {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t signals = StopSignals();
  CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  wake_fd_ = eventfd(0, EFD_CLOEXEC);
  CHECK(wake_fd_ >= 0);
  const timespec now{};
  if (const int number = sigtimedwait(&signals, nullptr, &now); number > 0) Take(number);
  worker_ = Worker("signals", [this](std::stop_token) { TakeSignals(); });
}

Interrupt::~Interrupt() {
  const std::uint64_t one = 1;
  CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
  worker_.Join();
  close(wake_fd_);
}

void Interrupt::TakeSignals() {
  const sigset_t signals = StopSignals();
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  CHECK(signal_fd >= 0);
  pollfd fds[2] = {{signal_fd, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  while ((fds[1].revents & POLLIN) == 0) {
    if (poll(fds, 2, -1) < 0 || (fds[0].revents & POLLIN) == 0) continue;
    signalfd_siginfo taken{};
    if (read(signal_fd, &taken, sizeof(taken)) != sizeof(taken)) continue;
    Take(static_cast<int>(taken.ssi_signo));
  }
  close(signal_fd);
}

void Interrupt::Take(int number) {
  int none = 0;
  const bool first = signal_.compare_exchange_strong(none, number);
  if (!first && number == SIGINT) _exit(kExitInterrupted);
  stop_.request_stop();
}

Status Interrupt::StopStatusOfServer() const { return signal_ == SIGTERM ? OkStatus() : InterruptedError(); }

void Interrupt::Wait() { Clock::Real().SleepUntil(TimePoint::max(), token()); }

Status InterruptedError() { return Status::Cancelled("interrupted", "stopped by a signal"); }

}  // namespace bascule
