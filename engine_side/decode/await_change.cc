#include "engine_side/decode/await_change.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bascule {
namespace {

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

std::uint32_t AwaitChange(const std::atomic<std::uint32_t>& word, std::uint32_t seen, int spins) {
  for (int spin = 0; spin < spins; ++spin) {
    if (const std::uint32_t now = word.load(std::memory_order_acquire); now != seen) return now;
    Pause();
  }
  word.wait(seen, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace bascule
