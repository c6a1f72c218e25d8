#include "tests/support/fiber/stack_switch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/status.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Pushes what a callee has to keep, exchanges the stack pointers, pops, and returns where the other stack left.
extern "C" void BasculeSwitchStack(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl BasculeSwitchStack
.type BasculeSwitchStack, @function
BasculeSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size BasculeSwitchStack, .-BasculeSwitchStack
)");
constexpr std::size_t kSavedWords = 6;  // then the return address
#elif defined(__aarch64__)
asm(R"(
.text
.globl BasculeSwitchStack
.type BasculeSwitchStack, %function
BasculeSwitchStack:
  stp x29, x30, [sp, #-160]!
  stp x19, x20, [sp, #16]
  stp x21, x22, [sp, #32]
  stp x23, x24, [sp, #48]
  stp x25, x26, [sp, #64]
  stp x27, x28, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp d14, d15, [sp, #144]
  ldp d12, d13, [sp, #128]
  ldp d10, d11, [sp, #112]
  ldp d8, d9, [sp, #96]
  ldp x27, x28, [sp, #80]
  ldp x25, x26, [sp, #64]
  ldp x23, x24, [sp, #48]
  ldp x21, x22, [sp, #32]
  ldp x19, x20, [sp, #16]
  ldp x29, x30, [sp], #160
  ret
.size BasculeSwitchStack, .-BasculeSwitchStack
)");
constexpr std::size_t kSavedWords = 1;  // x29, then x30, where `ret` goes
constexpr std::size_t kFrameWords = 20;
#else
#error "no stack switch is known for this machine"
#endif

namespace bascule::fiber {
namespace {

#if defined(__SANITIZE_ADDRESS__)
thread_local Resumption* left_behind = nullptr;  // by this thread's last switch
#endif

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
const std::size_t Stack::kDefaultBytes = 2 << 20;  // redzones
#else
const std::size_t Stack::kDefaultBytes = 512 << 10;
#endif

Stack::Stack(std::size_t bytes) : bytes_(bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const mapped =
      mmap(nullptr, bytes_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapped != MAP_FAILED && mprotect(mapped, page, PROT_NONE) == 0);
  mapped_ = static_cast<std::byte*>(mapped);
  low_ = mapped_ + page;
}

Stack::~Stack() { munmap(mapped_, static_cast<std::size_t>(low_ - mapped_) + bytes_); }

Resumption StartOn(const Stack& stack, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  // Frames of the fiber that had the stack before never returned.
  __asan_unpoison_memory_region(stack.low(), stack.bytes());
#endif
  auto top = reinterpret_cast<std::uintptr_t>(stack.low() + stack.bytes()) & ~std::uintptr_t{63};
#if defined(__x86_64__)
  // As after a call: the return address of `entry` lies at 8 modulo 16.
  auto* const frame = reinterpret_cast<std::uintptr_t*>(top - 16) - kSavedWords;
  for (std::size_t i = 0; i < kSavedWords; ++i) frame[i] = 0;
  frame[kSavedWords] = reinterpret_cast<std::uintptr_t>(entry);
  frame[kSavedWords + 1] = 0;
#else
  auto* const frame = reinterpret_cast<std::uintptr_t*>(top) - kFrameWords;
  for (std::size_t i = 0; i < kFrameWords; ++i) frame[i] = 0;
  frame[kSavedWords] = reinterpret_cast<std::uintptr_t>(entry);
#endif
  return {.stack_pointer = frame, .shadow_stack = nullptr, .low = stack.low(), .bytes = stack.bytes()};
}

void Switch(Resumption& from, Resumption& to, [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  left_behind = &from;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.shadow_stack, to.low, to.bytes);
#endif
  BasculeSwitchStack(&from.stack_pointer, to.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.shadow_stack, &left_behind->low, &left_behind->bytes);
#endif
}

void Arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &left_behind->low, &left_behind->bytes);
#endif
}

}  // namespace bascule::fiber
