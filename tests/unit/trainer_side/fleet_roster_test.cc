#include "trainer_side/fleet_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bascule {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Duration kSecond = std::chrono::seconds(1);
const Status kGone = Status::Unavailable("peer_unreachable", "nobody there");

class FleetRosterTest : public testing::Test {
 protected:
  static WeightVersion Version(std::uint64_t number, const std::string& run = "r") {
    WeightVersion version{.run = run, .number = number, .digest = {}};
    version.digest.bytes[0] = static_cast<std::byte>(number);
    return version;
  }
  void Beat(const std::string& address, std::uint64_t live = 0, std::uint64_t instance = 1) {
    FleetHeartbeat heartbeat{.address = address, .instance = {instance}, .ready = true};
    if (live > 0) heartbeat.live = Version(live);
    ASSERT_TRUE(roster_.Join(heartbeat, now_).ok());
  }
  void EndWith(const std::string& address, const Status& status, std::uint64_t live = 0) {
    const ReplicaState state = status.ok() ? ReplicaState::kCommitted : ReplicaState::kAborted;
    roster_.Ended(address, status, state, "send", live > 0 ? Version(live) : WeightVersion{}, now_);
  }
  FleetRow Row(const std::string& address) {
    for (const FleetRow& row : roster_.Rows(now_)) {
      if (row.address == address) return row;
    }
    ADD_FAILURE() << address << " is not in the fleet";
    return {};
  }
  bool Behind(const std::string& address) { return roster_.WelcomeOf(address, true, now_).required.has_value(); }

  FleetOptions options_;
  TimePoint now_{std::chrono::hours(5)};
  FleetRoster roster_{options_, {"b", "a"}};
};

TEST_F(FleetRosterTest, ListedReplicasStayAndJoinedOnesLastWhileTheirHeartbeatsCome) {
  Beat("c");
  EXPECT_THAT(roster_.Targets(now_), ElementsAre("b", "a", "c"));

  now_ += options_.heartbeat * (options_.missed_heartbeats + 1);

  EXPECT_THAT(roster_.Targets(now_), ElementsAre("b", "a"));
  EXPECT_EQ(Row("c").state, "lost");
  Beat("c");
  EXPECT_THAT(roster_.Targets(now_), ElementsAre("b", "a", "c"));
}

// C-055.
TEST_F(FleetRosterTest, WhoLeavesIsGoneUnlessAnotherProcessHasItsAddress) {
  Beat("c", 0, 7);
  Beat("d", 0, 8);

  roster_.Leave("c", InstanceId{6});
  roster_.Leave("d", InstanceId{8});

  EXPECT_THAT(roster_.Targets(now_), ElementsAre("b", "a", "c"));
}

TEST_F(FleetRosterTest, WhoLacksWhatTheFleetHasCommittedIsBehindAndDue) {
  Beat("c", 6);
  Beat("d", 7);
  EndWith("a", OkStatus(), 7);
  EndWith("b", OkStatus(), 7);

  roster_.Commit(Version(7));

  EXPECT_THAT(roster_.Due(now_), ElementsAre("c"));
  EXPECT_TRUE(Behind("c"));
  EXPECT_THAT(roster_.WelcomeOf("c", true, now_).holders, ElementsAre("b", "a", "d"));
  EXPECT_EQ(Row("c").state, "behind");
  EXPECT_EQ(Row("c").staleness, 1u);
  EXPECT_FALSE(Row("c").ready);
  EXPECT_FALSE(Behind("d"));
  EXPECT_TRUE(Row("d").ready);
}

TEST_F(FleetRosterTest, AReplicaThatIsAheadByAPublishUnderWayIsNotBehind) {
  Beat("c", 6);
  roster_.Commit(Version(6));

  Beat("c", 7);

  EXPECT_FALSE(Behind("c"));
  EXPECT_THAT(roster_.Due(now_), ElementsAre("b", "a"));
}

TEST_F(FleetRosterTest, AfterARollbackTheFleetsVersionIsTheOlderOne) {
  Beat("c", 7);
  roster_.Commit(Version(7));
  roster_.Commit(Version(6));

  EXPECT_TRUE(Behind("c"));
  Beat("c", 6);
  EXPECT_FALSE(Behind("c"));
  Beat("c", 8);
  EXPECT_FALSE(Behind("c")) << "the next version";
}

TEST_F(FleetRosterTest, OtherBytesUnderTheSameNumberAreBehind) {
  roster_.Commit(Version(7));
  FleetHeartbeat heartbeat{.address = "c", .instance = {1}, .live = Version(7), .ready = true};
  heartbeat.live.digest.bytes[5] = std::byte{1};

  ASSERT_TRUE(roster_.Join(heartbeat, now_).ok());

  EXPECT_TRUE(Behind("c"));
}

TEST_F(FleetRosterTest, AReplicaThatKeepsFailingIsLeftAloneLongerEachTime) {
  roster_.Commit(Version(7));
  Duration expected = options_.first_retry;
  for (int failures = 1; failures < 12; ++failures) {
    ASSERT_THAT(roster_.Due(now_), testing::Contains("a")) << failures;
    EndWith("a", kGone);
    EXPECT_THAT(roster_.Due(now_), testing::Not(testing::Contains("a")));
    EXPECT_EQ(Row("a").retry_in, expected);
    EXPECT_EQ(Row("a").failures, failures);
    EXPECT_EQ(Row("a").state, "resting");
    now_ += expected - std::chrono::milliseconds(1);
    EXPECT_THAT(roster_.Due(now_), testing::Not(testing::Contains("a")));
    now_ += std::chrono::milliseconds(1);
    expected = std::min(2 * expected, options_.retry_cap);
  }

  EndWith("a", OkStatus(), 7);

  EXPECT_EQ(Row("a").failures, 0);
  EXPECT_EQ(Row("a").state, "committed");
}

TEST_F(FleetRosterTest, PublishesGoOnWithTheRestOnceAReplicaRests) {
  for (int i = 0; i < options_.failures_before_rest; ++i) {
    EXPECT_THAT(roster_.Targets(now_), ElementsAre("b", "a"));
    EndWith("a", kGone);
  }

  EXPECT_THAT(roster_.Targets(now_), ElementsAre("b"));
  now_ += options_.retry_cap;
  EXPECT_THAT(roster_.Targets(now_), ElementsAre("b", "a")) << "it is tried again after a while";
}

TEST_F(FleetRosterTest, WhatIsNotAReplicasOwnWeaknessDoesNotCountAgainstIt) {
  for (const Status& status :
       {Status::Aborted("replica_not_ready", ""), Status::Aborted("superseded", ""), Status::Cancelled("cancelled", ""),
        Status::Unavailable("publisher_busy", ""), Status::DataLoss("sentinel_differs", "")}) {
    EndWith("a", status);
    EXPECT_EQ(Row("a").failures, 0) << status.reason();
  }
}

TEST_F(FleetRosterTest, OneThatRefusesIsTriedAgainAfterAPauseEachTimeTheSame) {
  roster_.Commit(Version(7));
  for (int refusals = 1; refusals < 4; ++refusals) {
    ASSERT_THAT(roster_.Due(now_), testing::Contains("a")) << refusals;
    EndWith("a", Status::FailedPrecondition("shadow_reserved", ""));
    EXPECT_THAT(roster_.Due(now_), testing::Not(testing::Contains("a")));
    EXPECT_EQ(Row("a").retry_in, options_.first_retry);
    now_ += options_.first_retry;
  }
}

// C-053.
TEST_F(FleetRosterTest, AnEngineThatCrashesAfterEachJoinIsTriedLessAndLess) {
  roster_.Commit(Version(7));
  int tries = 0;
  for (std::uint64_t instance = 1; instance <= 60; ++instance, now_ += kSecond) {
    Beat("c", 0, instance);
    if (std::ranges::count(roster_.Due(now_), "c") == 0) continue;
    ++tries;
    EndWith("c", OkStatus(), 7);  // it took the version, and crashes a second later
  }

  EXPECT_LT(tries, 10);
  EXPECT_EQ(Row("c").state, "resting");
  Beat("c", 0, 60);
  now_ += options_.retry_cap;
  Beat("c", 0, 60);
  EXPECT_EQ(Row("c").failures, 0) << "it has stood for long enough";
  EXPECT_THAT(roster_.Due(now_), testing::Contains("c"));
}

TEST_F(FleetRosterTest, AFullFleetTakesNobodyInUntilALostOneMakesRoom) {
  options_.max_members = 3;
  FleetRoster small(options_, {"a"});
  const auto join = [&](const std::string& address) {
    return small.Join({.address = address, .instance = {1}}, now_).reason();
  };
  EXPECT_EQ(join("b"), "");
  EXPECT_EQ(join("c"), "");

  EXPECT_EQ(join("d"), "fleet_full");
  now_ += options_.heartbeat * (options_.missed_heartbeats + 1);
  EXPECT_EQ(join("d"), "");
  EXPECT_EQ(join(""), "bad_address");
}

TEST_F(FleetRosterTest, OfALongErrorTextTheBeginningIsKept) {
  const Status why = Status::Unavailable("peer_lost", std::string(64 << 10, 'x'));
  ASSERT_TRUE(roster_.Join({.address = "a", .instance = {1}, .last_error = why}, now_).ok());
  EndWith("b", why);

  for (const char* address : {"a", "b"}) {
    EXPECT_EQ(Row(address).last_error.reason(), "peer_lost");
    EXPECT_EQ(Row(address).last_error.message().size(), 1024u);
  }
}

TEST_F(FleetRosterTest, NobodyIsDueWhereNothingIsCommitted) {
  Beat("c");

  EXPECT_THAT(roster_.Due(now_), IsEmpty());
  EXPECT_FALSE(roster_.NextDue(now_));
  EXPECT_EQ(Row("c").state, "joined");
}

}  // namespace
}  // namespace bascule
