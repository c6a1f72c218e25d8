#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstring>

#include "base/status.h"
#include "checkpoint/guarded_copy_internal.h"

namespace bascule {
namespace {

struct Guard {
  sigjmp_buf back;
  std::uintptr_t begin;
  std::uintptr_t end;
};
// What this thread copies from just now; null when it does not. Volatile: the handler reads it between two statements.
thread_local Guard* volatile guard = nullptr;

struct sigaction previous {};

// SIGBUS is delivered to the thread that touched the page, in the middle of its copy: nothing but that copy is left.
void OnBus(int signal, siginfo_t* facts, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(facts->si_addr);
  if (guard != nullptr && address >= guard->begin && address < guard->end) {
    // What was blocked for the handler (ThreadSanitizer's blocks everything) is as it was when the copy was
    // interrupted.
    pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(guard->back, 1);
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, facts, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  // The instruction is run again and the signal ends the process, as it would have without us.
  sigaction(SIGBUS, &previous, nullptr);
}

bool TakeSignal() {
  struct sigaction action {};
  action.sa_sigaction = OnBus;
  sigemptyset(&action.sa_mask);
  // Left by a jump that restores no mask, so the signal stays unblocked.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGBUS, &action, &previous) == 0;
}

// The pages that the copy touches: a fault is reported at an address of the copy or at the start of its page.
constexpr std::uintptr_t kPageBytes = 4096;

}  // namespace

bool GuardedCopy(const std::byte* source, std::span<std::byte> target) {
  static const bool taken = TakeSignal();
  CHECK(taken);
  if (target.empty()) return true;
  const auto begin = reinterpret_cast<std::uintptr_t>(source);
  Guard own;
  own.begin = begin / kPageBytes * kPageBytes;
  own.end = begin + target.size();
  if (sigsetjmp(own.back, /*save mask=*/0) != 0) {
    guard = nullptr;
    return false;
  }
  guard = &own;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(target.data(), source, target.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guard = nullptr;
  return true;
}

}  // namespace bascule
