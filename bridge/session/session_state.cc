#include "bridge/session/session_state.h"

#include <array>

namespace bascule {
namespace {

using enum SessionState;
using enum SessionEvent;

constexpr std::array kTable = {
    SessionTransition{kIdle, kOffer, kOffered},
    SessionTransition{kOffered, kAccept, kReceiving},
    SessionTransition{kReceiving, kBucketGood, kReceiving},
    SessionTransition{kReceiving, kBucketDuplicate, kReceiving},
    SessionTransition{kReceiving, kBucketDamaged, kReceiving},
    SessionTransition{kReceiving, kBucketDamagedAgain, kAborted},
    SessionTransition{kReceiving, kSealIncomplete, kReceiving},
    SessionTransition{kReceiving, kSeal, kSealed},
    SessionTransition{kSealed, kVerified, kReady},
    SessionTransition{kSealed, kMismatch, kAborted},
    SessionTransition{kReady, kFlip, kCommitted},
    SessionTransition{kReady, kFlipPostponed, kReady},
    SessionTransition{kOffered, kAbort, kAborted},
    SessionTransition{kOffered, kDeadline, kAborted},
    SessionTransition{kOffered, kPeerLost, kAborted},
    SessionTransition{kOffered, kFenced, kAborted},
    SessionTransition{kReceiving, kAbort, kAborted},
    SessionTransition{kReceiving, kDeadline, kAborted},
    SessionTransition{kReceiving, kPeerLost, kAborted},
    SessionTransition{kReceiving, kFenced, kAborted},
    SessionTransition{kSealed, kAbort, kAborted},
    SessionTransition{kSealed, kDeadline, kAborted},
    SessionTransition{kSealed, kPeerLost, kAborted},
    SessionTransition{kSealed, kFenced, kAborted},
    SessionTransition{kReady, kAbort, kAborted},
    SessionTransition{kReady, kDeadline, kAborted},
    SessionTransition{kReady, kPeerLost, kAborted},
    SessionTransition{kReady, kFenced, kAborted},
};

constexpr std::array<std::string_view, 7> kStateNames = {"idle",  "offered",   "receiving", "sealed",
                                                         "ready", "committed", "aborted"};
constexpr std::array<std::string_view, 16> kEventNames = {"offer",
                                                          "accept",
                                                          "bucket_good",
                                                          "bucket_duplicate",
                                                          "bucket_damaged",
                                                          "bucket_damaged_again",
                                                          "seal_incomplete",
                                                          "seal",
                                                          "verified",
                                                          "mismatch",
                                                          "flip",
                                                          "flip_postponed",
                                                          "abort",
                                                          "deadline",
                                                          "peer_lost",
                                                          "fenced"};

}  // namespace

std::string_view SessionStateName(SessionState state) { return kStateNames.at(static_cast<std::size_t>(state)); }
std::string_view SessionEventName(SessionEvent event) { return kEventNames.at(static_cast<std::size_t>(event)); }

std::span<const SessionTransition> SessionTable() { return kTable; }

Result<SessionState> NextState(SessionState state, SessionEvent event) {
  for (const SessionTransition& row : kTable) {
    if (row.from == state && row.event == event) return row.to;
  }
  return Status::FailedPrecondition("bad_transition",
                                    fmt::format("state={} event={}", SessionStateName(state), SessionEventName(event)));
}

}  // namespace bascule
