#include "bridge/session/session_state.h"

#include <gtest/gtest.h>

#include <set>

namespace bascule {
namespace {

constexpr SessionState kStates[] = {SessionState::kIdle,   SessionState::kOffered, SessionState::kReceiving,
                                    SessionState::kSealed, SessionState::kReady,   SessionState::kCommitted,
                                    SessionState::kAborted};

TEST(SessionStateTest, ACleanSessionRunsFromIdleToCommitted) {
  SessionState state = SessionState::kIdle;

  for (const SessionEvent event : {SessionEvent::kOffer, SessionEvent::kAccept, SessionEvent::kBucketGood,
                                   SessionEvent::kSeal, SessionEvent::kVerified, SessionEvent::kFlip}) {
    state = *NextState(state, event);
  }

  EXPECT_EQ(state, SessionState::kCommitted);
  EXPECT_TRUE(IsOver(state));
}

TEST(SessionStateTest, OnlyAVerifiedSessionFlips) {
  for (const SessionState state : kStates) {
    EXPECT_EQ(NextState(state, SessionEvent::kFlip).ok(), state == SessionState::kReady) << SessionStateName(state);
  }
}

TEST(SessionStateTest, EveryOpenStateEndsOnAbortDeadlineLossAndFence) {
  for (const SessionEvent event :
       {SessionEvent::kAbort, SessionEvent::kDeadline, SessionEvent::kPeerLost, SessionEvent::kFenced}) {
    for (const SessionState state :
         {SessionState::kOffered, SessionState::kReceiving, SessionState::kSealed, SessionState::kReady}) {
      const Result<SessionState> next = NextState(state, event);
      ASSERT_TRUE(next.ok()) << SessionStateName(state) << " " << SessionEventName(event);
      EXPECT_EQ(*next, SessionState::kAborted);
    }
  }
}

TEST(SessionStateTest, ASessionThatIsOverTakesNoEvent) {
  for (const SessionTransition& row : SessionTable()) EXPECT_FALSE(IsOver(row.from));
  EXPECT_EQ(NextState(SessionState::kCommitted, SessionEvent::kAbort).status().reason(), "bad_transition");
}

TEST(SessionStateTest, EveryTransitionIsListedOnceAndEveryStateIsReached) {
  std::set<std::pair<SessionState, SessionEvent>> seen;
  std::set<SessionState> reached{SessionState::kIdle};

  for (const SessionTransition& row : SessionTable()) {
    EXPECT_TRUE(seen.emplace(row.from, row.event).second) << SessionStateName(row.from) << SessionEventName(row.event);
    reached.insert(row.to);
  }

  EXPECT_EQ(reached.size(), std::size(kStates));
}

}  // namespace
}  // namespace bascule
