// A trainer of several processes whose fleet grows between publishes: who comes late gets each rank's part from that
// rank's own snapshot, or hears whose is gone.
#include "tests/unit/trainer_side/group_fixture.h"

namespace bascule {
namespace {

using testing::ElementsAre;

class GroupCatchUpTest : public GroupFixture {
 protected:
  GroupCatchUpTest() {
    options_.run = "base";
    options_.snapshot = Snapshot::kHost;
    options_.catch_up = true;
    options_.fleet.first_retry = std::chrono::milliseconds(1);
    UseGroup(3);
  }

  // An engine that the leader does not know of.
  ScriptedEngine& AddStranger() {
    AddEngine(/*engine_ranks=*/2);
    options_.replicas.pop_back();
    return *engines_.back();
  }
  FleetWelcome Join(std::size_t engine) {
    const WeightVersion live = engines_[engine]->live();
    const auto welcome = ranks_[0]->Join({.address = "engine-" + std::to_string(engine),
                                          .instance = {1},
                                          .live = live.number == 0 ? WeightVersion{} : live,
                                          .ready = live.number != 0});
    CHECK(welcome.ok());
    return *welcome;
  }
  FleetRow Row(std::size_t engine) {
    for (const FleetRow& row : ranks_[0]->status().fleet) {
      if (row.address == "engine-" + std::to_string(engine)) return row;
    }
    return {};
  }
  bool WaitForLive(std::size_t engine, const WeightVersion& version) {
    return Eventually([&] { return engines_[engine]->live() == version && Row(engine).state == "committed"; }, Soon());
  }
  std::vector<std::byte> BytesOfAll() const {
    std::vector<std::byte> bytes;
    for (int rank = 0; rank < 2; ++rank) {
      for (std::size_t t = 0; t < ShardedTrainer::WireTensors().size(); ++t) {
        const std::vector<std::byte> tensor = trainer_->EngineBytes(2, rank, static_cast<int>(t));
        bytes.insert(bytes.end(), tensor.begin(), tensor.end());
      }
    }
    return bytes;
  }
  std::vector<std::byte> LiveOfAll(const ScriptedEngine& engine) const {
    std::vector<std::byte> bytes;
    for (int rank = 0; rank < 2; ++rank) {
      for (std::size_t t = 0; t < ShardedTrainer::WireTensors().size(); ++t) {
        const std::vector<std::byte> tensor = engine.Live(rank, static_cast<int>(t));
        bytes.insert(bytes.end(), tensor.begin(), tensor.end());
      }
    }
    return bytes;
  }
};

// C-052.
TEST_F(GroupCatchUpTest, WhoJoinsLateGetsEveryRanksPartFromItsSnapshot) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  AddStranger();
  MakeGroup();
  const std::vector<PublishReport> reports = PublishAll();
  ASSERT_TRUE(reports[0].AllCommitted());
  const std::vector<std::byte> published = BytesOfAll();
  trainer_->Fill(99);  // the trainer goes on

  const FleetWelcome welcome = Join(1);

  EXPECT_TRUE(welcome.publisher_sends);
  ASSERT_TRUE(WaitForLive(1, reports[0].version));
  EXPECT_EQ(LiveOfAll(*engines_[1]), published);
  EXPECT_EQ(engines_[0]->account().offers.size(), 1u) << "nobody else is sent anything";

  Join(2);
  ASSERT_TRUE(WaitForLive(2, reports[0].version));
  EXPECT_EQ(LiveOfAll(*engines_[2]), published);
  EXPECT_EQ(PublishAll()[0].replicas.size(), 3u) << "and the group goes on";
}

TEST_F(GroupCatchUpTest, AFleetMayBeginEmptyWhereTensorsStay) {
  options_.snapshot = Snapshot::kTensorsStay;
  AddStranger();
  MakeGroup();
  ASSERT_TRUE(PublishAll({.number = 5})[0].replicas.empty());

  Join(0);

  EXPECT_TRUE(WaitForLive(0, {.run = "base", .number = 5, .digest = ExpectedDigest()}));
}

// The ranks kept the version before in the types that engines take, and so they keep the next, though nobody takes it.
TEST_F(GroupCatchUpTest, WhoJoinsAfterAPublishThatReachedNobodyGetsNoOlderBytesFromAnyRank) {
  AddStranger();
  AddStranger();
  MakeGroup();
  Join(0);
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  ranks_[0]->Leave("engine-0", InstanceId{1});
  trainer_->Fill(7);
  const WeightVersion version{.run = "base", .number = 2, .digest = ExpectedDigest()};
  ASSERT_TRUE(PublishAll({.number = 2})[0].replicas.empty());
  trainer_->Fill(99);

  Join(1);

  EXPECT_TRUE(WaitForLive(1, version));
}

TEST_F(GroupCatchUpTest, ACatchUpGivesWayToTheNextPublishOfAllRanks) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger().Play({.step = EngineStep::kSeal, .deed = EngineDeed::kStall});
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  Join(1);
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return account.misdeeds == 1; }));
  engines_[1]->Play({});
  trainer_->Fill(7);

  const std::vector<PublishReport> reports = PublishAll();

  EXPECT_TRUE(reports[0].AllCommitted());
  EXPECT_EQ(reports[0].version.number, 2u);
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return !account.aborts.empty(); }));
  EXPECT_EQ(engines_[1]->account().aborts.at(0).reason(), "superseded");
  ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
}

// A rank that runs ahead has the next version in its tensors, and perhaps in its snapshot: it sends nothing of it under
// the number of the last.
TEST_F(GroupCatchUpTest, ARankThatPublishesAlreadySendsNothingUnderTheOldNumber) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  trainer_->Fill(7);
  std::vector<std::shared_ptr<PublishHandle>> handles;
  handles.push_back(*ranks_[1]->Publish({}));
  ASSERT_TRUE(Eventually(
      [&] {
        Join(1);
        return Row(1).last_error.reason() == "superseded";
      },
      Soon()));
  EXPECT_EQ(engines_[1]->live().number, 0u);

  handles.insert(handles.begin(), *ranks_[0]->Publish({}));
  handles.push_back(*ranks_[2]->Publish({}));

  EXPECT_TRUE(Reports(handles)[0].AllCommitted());
  ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
}

TEST_F(GroupCatchUpTest, AProcessThatTookARanksPlaceHasNothingOfTheVersionAndTheLateOneIsToldWhoHas) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  MakeGroup();
  const std::vector<PublishReport> reports = PublishAll();
  ASSERT_TRUE(reports[0].AllCommitted());
  ranks_[2].reset();
  ranks_[2] = MakeRank(2);

  ASSERT_TRUE(Eventually([&] { return !Join(1).publisher_sends; }, Soon()));
  EXPECT_EQ(Row(1).failures, 0) << "it is no weakness of the replica";
  const FleetWelcome welcome = Join(1);
  EXPECT_EQ(welcome.required, reports[0].version);
  EXPECT_FALSE(welcome.publisher_sends);
  EXPECT_THAT(welcome.holders, ElementsAre("engine-0"));
  EXPECT_EQ(engines_[1]->account().offers.size(), 0u);
  EXPECT_TRUE(PublishAll()[0].AllCommitted()) << "the next publish takes it along";
}

TEST_F(GroupCatchUpTest, AGroupOfWhichOneRankKeepsNothingSendsNothingAgain) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  ranks_.push_back(MakeRank(0));
  ranks_.push_back(MakeRank(1));
  options_.snapshot = Snapshot::kNone;
  ranks_.push_back(MakeRank(2));
  ASSERT_TRUE(PublishAll()[0].AllCommitted());

  const FleetWelcome welcome = Join(1);

  EXPECT_FALSE(welcome.publisher_sends);
  EXPECT_THAT(welcome.holders, ElementsAre("engine-0"));
}

}  // namespace
}  // namespace bascule
