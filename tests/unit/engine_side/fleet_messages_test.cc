// What a fleet's publisher says between sessions, as a receiver takes it: what is required, and the way back.
#include "engine_side/peer_sender.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

class FleetMessagesTest : public ReceiverTest {
 protected:
  WeightVersion live() { return *receiver_->status().live; }
  void Require(ScriptedPublisher& publisher, const WeightVersion& version) {
    publisher.Send(bascule::Require{version});
    WaitFor([](const ReceiverStatus& status) { return status.required.has_value(); });
  }
};

TEST_F(FleetMessagesTest, AReplicaWithoutTheRequiredVersionServesOnButIsNotReady) {
  auto publisher = WithVersionOne();
  ASSERT_TRUE(receiver_->status().Ready());

  Require(*publisher, {"run", 7, {}});

  EXPECT_FALSE(receiver_->status().Ready());
  EXPECT_EQ(live_number(), 1u);
  EXPECT_FALSE(receiver_->AcquireLive().empty());
  EXPECT_EQ(receiver_->status().newest_seen, 7u) << "so its staleness is 6";
}

TEST_F(FleetMessagesTest, TheRequiredVersionOrANewerOneMakesItReadyAgain) {
  for (const std::uint64_t next : {7, 8}) {
    Start(2);
    auto publisher = WithVersionOne();
    Require(*publisher, {"run", 7, {}});
    publisher->Publish(publisher->MakeOffer(6));
    EXPECT_FALSE(receiver_->status().Ready()) << "an older one does not";

    publisher->Publish(publisher->MakeOffer(next));

    EXPECT_TRUE(receiver_->status().Ready());
    EXPECT_FALSE(receiver_->status().required);
  }
}

TEST_F(FleetMessagesTest, OtherBytesUnderTheRequiredNumberAreNotTheRequiredVersion) {
  auto publisher = WithVersionOne();
  WeightVersion other = live();
  other.digest.bytes[3] ^= std::byte{1};

  Require(*publisher, other);
  EXPECT_FALSE(receiver_->status().Ready());

  receiver_->Require(live());
  EXPECT_TRUE(receiver_->status().Ready());
}

TEST_F(FleetMessagesTest, ARollbackDoesNotCatchUpUnlessItIsToTheRequiredVersion) {
  auto publisher = WithVersionOne();
  const WeightVersion one = live();
  publisher->Publish(publisher->MakeOffer(2));
  const WeightVersion two = live();
  receiver_->Require({"run", 5, {}});
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  EXPECT_FALSE(receiver_->status().Ready());

  receiver_->Require(two);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  EXPECT_EQ(live(), two);
  EXPECT_TRUE(receiver_->status().Ready());
}

TEST_F(FleetMessagesTest, APublisherCanRollBackWhatItPublishedAndTheHistorySaysWhy) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));

  publisher->Send(RollBack{live(), 1, Status::DataLoss("sentinel_differs", "prompt 3"), std::chrono::hours(1)});
  const auto answer = publisher->Expect<RolledBack>();

  EXPECT_EQ(answer.report.version.number, 1u);
  ExpectLiveBytesOf(1);
  EXPECT_EQ(hooks_.invalidated().size(), 3u) << "an invalidation of its own";
  const HistoryEntry row = receiver_->History().back();
  EXPECT_EQ(row.kind, HistoryEntry::Kind::kRollback);
  EXPECT_TRUE(row.committed);
  EXPECT_EQ(row.why.reason(), "sentinel_differs");
  publisher->Publish(publisher->MakeOffer(3));
  ExpectLiveBytesOf(3);
}

TEST_F(FleetMessagesTest, NoRollbackGoesToAVersionThatWasRefused) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));

  publisher->Send(
      RollBack{live(), 1, Status::DataLoss("sentinel_differs", "prompt 3"), std::chrono::hours(1), /*refused=*/true});
  publisher->Expect<RolledBack>();

  EXPECT_FALSE(receiver_->status().kept);
  EXPECT_EQ(receiver_->Rollback(std::nullopt, Soon()).status().reason(), "no_kept_version");
  EXPECT_EQ(receiver_->Rollback(2, Soon()).status().reason(), "no_kept_version");
  ExpectLiveBytesOf(1);
  EXPECT_TRUE(Greeted()->reply().kept.run.empty());
  publisher->Publish(publisher->MakeOffer(3));
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  ExpectLiveBytesOf(1);
}

// What its publisher knows of a peer is as old as its last word: it may be the canary of a newer version by now.
TEST_F(FleetMessagesTest, APeerThatHasGoneOnSendsNothingInPlaceOfWhatItIsAskedFor) {
  auto publisher = WithVersionOne();
  const WeightVersion one = live();
  publisher->Publish(publisher->MakeOffer(2));
  const auto send = [&](const std::optional<WeightVersion>& version) {
    ConnectionOptions nobody{.address = "nobody", .control = &control_};
    return SendLive(*receiver_, {}, std::move(nobody), Soon(), {}, {.to = "nobody", .version = version});
  };

  EXPECT_EQ(send(one).status.reason(), "version_not_live");
  EXPECT_EQ(send(WeightVersion{"run", 2, one.digest}).status.reason(), "version_not_live") << "other bytes";
  for (const auto& version :
       {std::optional<WeightVersion>(), std::optional(live()), std::optional(WeightVersion{"run", 2, {}})}) {
    EXPECT_EQ(send(version).status.reason(), "peer_unreachable") << "it would be sent";
  }
}

TEST_F(FleetMessagesTest, ARollbackOfWhatIsNotLiveOrToWhatIsNotKeptChangesNothing) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  const WeightVersion two = live();

  publisher->Send(RollBack{{"run", 3, {}}, 1, {}, std::chrono::hours(1)});
  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "version_not_live");
  publisher->Send(RollBack{two, 7, {}, std::chrono::hours(1)});
  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "version_not_kept");

  ExpectLiveBytesOf(2);
  EXPECT_EQ(receiver_->History().back().kind, HistoryEntry::Kind::kFull);
}

TEST_F(FleetMessagesTest, TheAnswerToHelloSaysWhatIsKept) {
  {
    auto publisher = WithVersionOne();
    EXPECT_TRUE(Greeted()->reply().kept.run.empty());
    publisher->Publish(publisher->MakeOffer(2));
  }

  EXPECT_EQ(Greeted()->reply().kept.number, 1u);
}

}  // namespace
}  // namespace bascule
