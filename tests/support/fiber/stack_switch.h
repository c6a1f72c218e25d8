// A stack of its own for a function, and the switch between two such stacks: what a fiber is made of. No system call is
// part of a switch, so that millions of them fit into a second.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>

namespace bascule::fiber {

class Stack {
 public:
  static const std::size_t kDefaultBytes;
  explicit Stack(std::size_t bytes = kDefaultBytes);  // mapped, with a guard page below
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  std::byte* low() const { return low_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* mapped_ = nullptr;
  std::byte* low_ = nullptr;
  std::size_t bytes_ = 0;
};

// Where a stack that does not run goes on.
struct Resumption {
  void* stack_pointer = nullptr;
  // For AddressSanitizer, which keeps a shadow of every stack.
  void* shadow_stack = nullptr;
  const void* low = nullptr;
  std::size_t bytes = 0;
};

// A resumption that calls `entry` on `stack` for the first time. `entry` never returns.
Resumption StartOn(const Stack& stack, void (*entry)());
// Leaves the running stack, which can be resumed through `from`, and goes on with `to`. With `for_good` the running
// stack is not resumed any more.
void Switch(Resumption& from, Resumption& to, bool for_good = false);
// First thing on a stack that runs for the first time.
void Arrived();

}  // namespace bascule::fiber
