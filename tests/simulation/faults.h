// What goes wrong in a schedule, and when: a list that a seed makes and that can be made shorter.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/session/session_state.h"

namespace bascule::simulation {

enum class FaultKind : std::uint8_t {
  // of the message or frame that passes
  kDrop,
  kDuplicate,  // it comes again, at once or behind the next
  kReorder,    // the next one overtakes it
  kCorrupt,    // a frame or a seal has other bits; any other message cannot be read
  kDelay,
  kCut,  // the wire that it passes on
  // of the processes that talk
  kPartition,   // nothing passes between the two processes for a while, in neither direction
  kKillEngine,  // it comes back when everything heals
  kRestartEngine,
  kStallEngine,
  kKillTrainer,
  kRestartTrainer,
  kStallTrainer,
  // what people and machines do
  kCancel,     // the trainer cancels its publish
  kRollback,   // an operator rolls the engine back
  kHoldLease,  // somebody reads the engine's live weights for a while
  kFailCopy,   // a copy of a flip in place fails
  kLeap,       // the machine is slow: time passes while nobody runs
};
inline constexpr std::size_t kFaultKinds = static_cast<std::size_t>(FaultKind::kLeap) + 1;
std::string_view FaultName(FaultKind kind);  // "kill_engine"
inline bool HitsMessage(FaultKind kind) { return kind <= FaultKind::kCut; }

struct Fault {
  FaultKind kind = FaultKind::kDrop;
  // It strikes at the step with this number: steps are messages and frames that pass, and changes of a session's state.
  // A fault of a message waits for the next one; one that is aimed, for an engine whose session is in that state.
  std::uint64_t at = 0;
  std::optional<SessionState> aim = std::nullopt;
  std::uint64_t detail = 0;  // how long, which bit, ...: each kind reads it in its own way
};

using FaultSchedule = std::vector<Fault>;  // by `at`
FaultSchedule MakeFaultSchedule(std::uint64_t seed);
std::string ToString(const Fault& fault);  // "corrupt@31/ready[1fe]"

}  // namespace bascule::simulation
