// One schedule: a fleet of simulated trainers, engines and cache daemons that publish, serve and fail as a seed and a
// fault schedule say, and what must hold of it at every step and in the end.
//
// Thread-safety: confined to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bridge/session/session_state.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/fleet_promises.h"

namespace bascule::simulation {

inline constexpr std::size_t kSessionStates = 7;
static_assert(kSessionStates == static_cast<std::size_t>(SessionState::kAborted) + 1);

// What a replica is that a fault strikes.
enum class Role : std::uint8_t { kEngine, kMember, kDaemon, kFollower };
inline constexpr std::size_t kRoles = static_cast<std::size_t>(Role::kFollower) + 1;
std::string_view RoleName(Role role);  // "follower"

// What schedules have reached. Plain numbers: it may lie in memory that processes share.
struct Tally {
  std::uint64_t schedules = 0;
  std::uint64_t switches = 0;
  std::uint64_t publishes = 0;
  std::uint64_t committed = 0;  // by every replica
  std::uint64_t flips = 0;
  std::uint64_t followed = 0;   // flips of engines to what their daemon has
  std::uint64_t caught_up = 0;  // flips to what the fleet had committed before, outside a publish
  // Publishes of partial versions, those that every replica committed, and flips to them by a session of that kind;
  // replicas that did not take one since they lacked its base, or since a newer version came before it was live.
  std::uint64_t partial = 0;
  std::uint64_t partial_committed = 0;
  std::uint64_t partial_flips = 0;
  std::uint64_t wrong_base = 0;
  std::uint64_t superseded = 0;
  std::uint64_t let_through = 0;  // by a canary's gate
  std::uint64_t refused = 0;
  std::uint64_t faults = 0;
  template <std::size_t kRows>
  using Table = std::array<std::array<std::uint64_t, kFaultKinds>, kRows>;
  // How often a fault struck while the replica's session, or its last one, was in a state; while the fleet's publish
  // stood somewhere; a replica of a kind.
  Table<kSessionStates> in_state{};
  Table<kMoments> at_moment{};
  Table<kRoles> on_role{};
  Table<kSessionStates> in_partial{};  // as in_state, of sessions of a partial version alone
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
