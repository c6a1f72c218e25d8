// A replica in a fleet, against a publisher that a script plays.
#include "engine_side/fleet_member.h"

#include <deque>

#include "tests/support/process_census.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

class ScriptedLink final : public FleetLink {
 public:
  Result<FleetWelcome> Join(const FleetHeartbeat& heartbeat, Deadline /*deadline*/) override {
    MutexLock lock(mu_);
    heartbeats_.push_back(heartbeat);
    if (!failure_.ok()) return failure_;
    FleetWelcome welcome = welcome_;
    welcome.heartbeat = std::chrono::seconds(2);
    return welcome;
  }
  Status Leave(const std::string& address, InstanceId instance, Deadline /*deadline*/) override {
    MutexLock lock(mu_);
    left_ = {address, instance};
    return OkStatus();
  }

  void FailWith(Status why) {
    MutexLock lock(mu_);
    failure_ = std::move(why);
  }
  void Answer(FleetWelcome welcome) {
    MutexLock lock(mu_);
    welcome_ = std::move(welcome);
  }
  std::vector<FleetHeartbeat> heartbeats() const {
    MutexLock lock(mu_);
    return heartbeats_;
  }
  std::pair<std::string, InstanceId> left() const {
    MutexLock lock(mu_);
    return left_;
  }

 private:
  mutable Mutex mu_;
  Status failure_ GUARDED_BY(mu_);
  FleetWelcome welcome_ GUARDED_BY(mu_);
  std::vector<FleetHeartbeat> heartbeats_ GUARDED_BY(mu_);
  std::pair<std::string, InstanceId> left_ GUARDED_BY(mu_);
};

class FleetMemberTest : public ReceiverTest {
 protected:
  void Make() {
    member_ = std::make_unique<FleetMember>(FleetMemberOptions{.address = "me"}, *receiver_, link_, clock_);
  }
  Result<FleetWelcome> Join() { return member_->Join(Soon(), {}); }
  // Lets time pass until the publisher has heard so many heartbeats.
  void AdvanceUntilHeard(std::size_t count) {
    const auto heard = [&] { return link_.heartbeats().size() >= count; };
    for (int i = 0; i < 10'000 && !heard(); ++i) {
      if (!Eventually(heard, Deadline::After(Clock::Real(), std::chrono::milliseconds(5)))) {
        clock_.Advance(std::chrono::milliseconds(100));
      }
    }
    ASSERT_TRUE(heard());
  }

  ScriptedLink link_;
  std::unique_ptr<FleetMember> member_;
};

TEST_F(FleetMemberTest, ItTellsWhatIsLiveAndIsNotReadyWithoutWhatTheFleetHasCommitted) {
  auto publisher = WithVersionOne();
  link_.Answer({.required = WeightVersion{.run = "run", .number = 7, .digest = {}}});
  Make();

  ASSERT_TRUE(Join().ok());

  EXPECT_EQ(link_.heartbeats()[0].address, "me");
  EXPECT_EQ(link_.heartbeats()[0].live, receiver_->status().live);
  EXPECT_TRUE(link_.heartbeats()[0].ready);
  EXPECT_FALSE(receiver_->status().Ready());
  publisher->Publish(publisher->MakeOffer(7));
  EXPECT_TRUE(receiver_->status().Ready());
}

TEST_F(FleetMemberTest, ItGoesOnTellingUntilItLeaves) {
  Make();
  ASSERT_TRUE(Join().ok());

  AdvanceUntilHeard(3);
  const InstanceId instance = link_.heartbeats()[0].instance;
  member_.reset();

  EXPECT_EQ(link_.left(), (std::pair<std::string, InstanceId>("me", instance)));
}

TEST_F(FleetMemberTest, APublisherThatIsAwayIsAskedAgainAndTheReplicaServesOn) {
  auto publisher = WithVersionOne();
  Make();
  ASSERT_TRUE(Join().ok());
  link_.FailWith(Status::Unavailable("peer_unreachable", "away"));

  AdvanceUntilHeard(6);

  EXPECT_TRUE(receiver_->status().Ready());
  EXPECT_EQ(live_number(), 1u);
}

TEST_F(FleetMemberTest, TheFirstJoinEndsAtItsDeadlineWithWhatThePublisherSaid) {
  link_.FailWith(Status::Unavailable("peer_unreachable", "away"));
  Make();

  const auto welcome = member_->Join(Deadline::After(clock_, std::chrono::milliseconds(400)), {});

  EXPECT_EQ(welcome.status().reason(), "peer_unreachable");
  member_.reset();
  EXPECT_EQ(link_.left().first, "") << "who never was a member does not leave";
}

TEST_F(FleetMemberTest, ARefusalThatNoTryCanChangeIsFinal) {
  link_.FailWith(Status::InvalidArgument("bad_address", "me"));
  Make();

  EXPECT_EQ(Join().status().reason(), "bad_address");
  EXPECT_EQ(link_.heartbeats().size(), 1u);
}

}  // namespace
}  // namespace bascule
