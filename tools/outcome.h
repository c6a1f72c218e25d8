// How a command ended: a Status and, where they apply, the peer and the phase; and what the shell gets to see of it.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace bascule {

struct Outcome {
  Outcome() = default;                             // done
  Outcome(Status why) : status(std::move(why)) {}  // NOLINT: implicit by design
  Outcome(Status why, std::string its_peer, std::string its_phase)
      : status(std::move(why)), peer(std::move(its_peer)), phase(std::move(its_phase)) {}

  Status status;
  std::string peer;   // address; empty: does not apply
  std::string phase;  // of a publish; empty: does not apply
};

// The program's exit codes.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitVerificationFailed = 3;
inline constexpr int kExitUnreachable = 4;
inline constexpr int kExitInterrupted = 130;

int ExitCodeOf(const Status& status);

// Wrong usage: exit code 2.
Status UsageError(std::string message);

}  // namespace bascule
