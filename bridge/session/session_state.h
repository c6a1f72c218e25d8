// The receiver's session as a pure state machine: no clock, no thread, no I/O. docs/protocol.md prints its table, and a
// test compares the two.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace bascule {

enum class SessionState : std::uint8_t { kIdle, kOffered, kReceiving, kSealed, kReady, kCommitted, kAborted };
std::string_view SessionStateName(SessionState state);  // "receiving"

enum class SessionEvent : std::uint8_t {
  kOffer,            // number new, layouts and plan digests agree, staging fits
  kAccept,           // shadow memory reserved
  kBucketGood,       // inside the plan, new, verified
  kBucketDuplicate,  // seen before: dropped and counted
  kBucketDamaged,    // first time: asked for again
  kBucketDamagedAgain,
  kSealIncomplete,  // planned buckets are missing, for the first time
  kSeal,            // every planned bucket is here
  kVerified,        // digests agree on every rank
  kMismatch,        // a digest differs
  kFlip,            // at a safe point, all ranks
  kFlipPostponed,   // would exceed the stall budget
  kAbort,           // said by either side
  kDeadline,
  kPeerLost,
  kFenced,  // a newer session of the same publisher, or a takeover
};
std::string_view SessionEventName(SessionEvent event);

struct SessionTransition {
  SessionState from;
  SessionEvent event;
  SessionState to;
};

// Every allowed transition, once. What is not here is refused.
std::span<const SessionTransition> SessionTable();

// FailedPrecondition "bad_transition"  the event is not allowed in this state
Result<SessionState> NextState(SessionState state, SessionEvent event);

inline bool IsOver(SessionState state) { return state == SessionState::kCommitted || state == SessionState::kAborted; }

}  // namespace bascule
