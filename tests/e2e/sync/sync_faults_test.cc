// Faults between the two ends: what can be repaired is, with the same digest; what cannot names the bucket and leaves
// the live version as it was.
#include "tests/e2e/sync/sync_fixture.h"

namespace bascule {
namespace {

class SyncFaultsTest : public SyncFixture {
 protected:
  static constexpr std::int64_t kInPayload = 300;
};

TEST_F(SyncFaultsTest, ADamagedPayloadIsSentAgain) {
  UseLoopback();
  Damage({.frames = {{.kind = FaultKind::kCorrupt, .at = 1, .offset = kInPayload},
                     {.kind = FaultKind::kCorrupt, .at = 4, .offset = -1}}});
  StartEngine(1);
  StartTrainer(2);

  const PublishReport damaged = Publish();
  ExpectLive(damaged);
  const PublishReport clean = Publish();

  ExpectLive(clean);
  EXPECT_GT(damaged.wire_bytes, clean.wire_bytes);
}

TEST_F(SyncFaultsTest, ADamagedHeaderIsFoundMissingAtTheSealAndSentAgain) {
  UseLoopback();
  Damage({.frames = {{.kind = FaultKind::kCorrupt, .at = 0, .offset = 5}}});
  StartEngine(1);
  StartTrainer(1);

  ExpectLive(Publish());
}

TEST_F(SyncFaultsTest, ATruncatedFrameIsFoundMissingAtTheSealAndSentAgain) {
  for (const std::int64_t offset : {0, 20, 64, -64}) {
    publisher_.reset();
    StopEngine();
    UseLoopback();
    Damage({.frames = {{.kind = FaultKind::kTruncate, .at = 1, .offset = offset}}});
    StartEngine(1);
    StartTrainer(1);

    ExpectLive(Publish());
  }
}

// C-013.
TEST_F(SyncFaultsTest, RepeatedAndReorderedFramesChangeNothing) {
  UseLoopback();
  Damage({}, {.frames = {{.kind = FaultKind::kDuplicate, .at = 0},
                         {.kind = FaultKind::kHold, .at = 2, .behind = 2},
                         {.kind = FaultKind::kDuplicate, .at = 5, .behind = 2}}});
  StartEngine(2);
  StartTrainer(2);

  ExpectLive(Publish());
}

TEST_F(SyncFaultsTest, ABucketDamagedTwiceIsNamedAndTheEngineKeepsItsVersion) {
  UseLoopback();
  std::vector<Fault> every_frame;
  for (std::int64_t at = 0; at < 200; ++at)
    every_frame.push_back({.kind = FaultKind::kCorrupt, .at = at, .offset = kInPayload});
  StartEngine(1);
  StartTrainer(1);
  const PublishReport first = Publish();
  ASSERT_TRUE(first.AllCommitted());
  publisher_.reset();
  FaultyDialer damaging(*dialer_, {.frames = every_frame});
  options_.transports = {&damaging};
  publisher_ = *WeightPublisher::Create(options_, trainer_->Source());

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.replicas[0].status.reason(), "bucket_damaged");
  EXPECT_THAT(report.replicas[0].status.message(), testing::HasSubstr("the engine says"));
  EXPECT_EQ(report.replicas[0].phase, "send");
  EXPECT_EQ(receiver_->status().live, first.version);
  publisher_.reset();
}

TEST_F(SyncFaultsTest, ACutRouteEndsThePublishAndTheNextConnectsAgain) {
  UseLoopback();
  // Of about six frames a publish on each route: in the second publish of a connection.
  Damage({.frames = {{.kind = FaultKind::kCut, .at = 8}}});
  StartEngine(1);
  StartTrainer(2);
  ASSERT_TRUE(Publish().AllCommitted());

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(report.replicas[0].phase, "send");
  trainer_->Fill(9);
  ExpectLive(Publish());
}

TEST_F(SyncFaultsTest, ALostAcknowledgementEndsAtTheDeadline) {
  UseLoopback();
  Damage({.acks = {{.kind = FaultKind::kDrop, .at = 1}}});
  options_.deadline = std::chrono::seconds(2);
  StartEngine(1);
  StartTrainer(1);

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.reason(), "deadline");
  EXPECT_EQ(report.replicas[0].phase, "send");
  EXPECT_FALSE(receiver_->status().live.has_value());
}

}  // namespace
}  // namespace bascule
