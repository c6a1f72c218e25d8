// Many schedules in several processes, and one failing schedule made small.
//
// Thread-safety: confined to one thread of a process that has no other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/simulation/faults.h"
#include "tests/simulation/world.h"

namespace bascule::simulation {

struct Finding {
  std::uint64_t seed = 0;
  std::string what;  // "I4: engine-0: ..."; or how the process ended
};

struct Campaign {
  std::uint64_t first_seed = 1;
  std::uint64_t schedules = 1;
  int processes = 1;
};

// Runs schedules first_seed, first_seed + 1, ... and stops at the first that breaks a promise or ends its process. The
// finding is that of the lowest seed among those that were run.
std::optional<Finding> RunCampaign(const Campaign& campaign, Tally& tally);

// What schedule `seed` comes to with these faults, in a process of its own.
std::optional<Finding> RunAlone(std::uint64_t seed, const FaultSchedule& faults);
// The fewest faults with which schedule `seed` still breaks the same promise, one taken away at a time.
FaultSchedule Shrink(const Finding& finding);

// "schedules=... publishes=... ", and tables of session states, moments of a publish and kinds of replica by faults.
std::string Summary(const Tally& tally);
// Each pair of a session's state and a fault that no schedule reached; each moment of a publish, kind of replica and
// state of a partial version's session that no fault struck: some moments are so short that few faults hit them, and in
// some no message is on its way; and what never became of a partial version.
std::string Unreached(const Tally& tally);

}  // namespace bascule::simulation
