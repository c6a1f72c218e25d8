// One schedule: a fleet of simulated trainers and engines that publish, serve and fail as a seed and a fault schedule
// say, and what must hold of it at every step and in the end.
//
// Thread-safety: confined to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "bridge/session/session_state.h"
#include "tests/simulation/faults.h"

namespace bascule::simulation {

inline constexpr std::size_t kSessionStates = 7;
static_assert(kSessionStates == static_cast<std::size_t>(SessionState::kAborted) + 1);

// What schedules have reached. Plain numbers: it may lie in memory that processes share.
struct Tally {
  std::uint64_t schedules = 0;
  std::uint64_t switches = 0;
  std::uint64_t publishes = 0;
  std::uint64_t committed = 0;  // by every replica
  std::uint64_t flips = 0;
  std::uint64_t faults = 0;
  // How often a fault struck while the engine's session, or its last one, was in a state.
  std::array<std::array<std::uint64_t, kFaultKinds>, kSessionStates> reached{};
  void Add(const Tally& other);
};

struct Outcome {
  Status status;  // Aborted: the reason names the invariant, or what the scheduler found
  std::uint64_t trace = 0;
};

// Runs schedule `seed` with these faults. After a failure the process is of no more use: fibers stand where they were.
// With `log` every step is printed.
Outcome RunSchedule(std::uint64_t seed, const FaultSchedule& faults, Tally& tally, bool log = false);

}  // namespace bascule::simulation
