// Where a process stands in its trainer group, from the variables that launchers set for it:
//
//   RANK, WORLD_SIZE        which of how many
//   BASCULE_LEADER          address of rank 0, as NetAddress has it; else it is made of
//   MASTER_ADDR             the host of rank 0, and
//   BASCULE_PORT            a port there; without it MASTER_PORT + 1000: on MASTER_PORT itself torch has its own store
//   BASCULE_GROUP           the job's name; without it TORCHELASTIC_RUN_ID, or none
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

inline constexpr int kPortsAboveMaster = 1000;

// The value of a variable; nothing where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();  // getenv: nobody else changes the environment meanwhile

// Rank 0 still needs a host to listen with.
//
// InvalidArgument "bad_environment"  names the variable that is missing, no number, or out of range
Result<TrainerGroup> TrainerGroupFrom(const Environment& environment);

// The same from a list of all processes: the first is the leader, at its address.
//
// InvalidArgument "bad_environment"  `rank` is not in the list
Result<TrainerGroup> TrainerGroupFrom(const std::vector<std::string>& addresses, int rank);

}  // namespace bascule
