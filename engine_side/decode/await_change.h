// Waiting for threads that compute side by side: awake at first, then asleep. What is waited for takes microseconds and
// depends on computation alone, so there is no deadline.
//
// Words that somebody sleeps on change in the single total order of atomics: a notifier looks for sleepers after its
// change, a sleeper for the change after it counts as one.
//
// Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace bascule {

inline constexpr int kAwakeSpins = 400;  // some 20 microseconds

// Waits until `word` differs from `seen` and returns it; sleeps after `spins` looks.
std::uint32_t AwaitChange(const std::atomic<std::uint32_t>& word, std::uint32_t seen, int spins = kAwakeSpins);

}  // namespace bascule
