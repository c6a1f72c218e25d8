#include "trainer_side/weight_publisher.h"

#include <tuple>

#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class WeightPublisherTest : public PublisherFixture {};

struct Setting {
  int trainer_ranks;
  int engine_ranks;
  int replicas;
  Snapshot snapshot;
};

class WeightPublisherSyncTest : public PublisherFixture, public testing::WithParamInterface<Setting> {};

TEST_P(WeightPublisherSyncTest, EveryReplicaHoldsTheTrainersTensorsAndDigestsAgree) {
  UseTrainer(GetParam().trainer_ranks);
  for (int i = 0; i < GetParam().replicas; ++i) AddEngine(GetParam().engine_ranks);
  options_.snapshot = GetParam().snapshot;
  MakePublisher();

  for (std::uint32_t step = 1; step <= 2; ++step) {
    trainer_->Fill(step);
    const PublishReport report = Publish();

    EXPECT_TRUE(report.AllCommitted());
    EXPECT_EQ(report.version, (WeightVersion{.run = "base", .number = step, .digest = ExpectedDigest()}));
    ASSERT_THAT(report.replicas, SizeIs(GetParam().replicas));
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      ExpectEngineHoldsTrainersTensors(*engines_[i], GetParam().engine_ranks);
      EXPECT_EQ(report.replicas[i].flip.version, report.version);
      EXPECT_EQ(report.replicas[i].flip.step, 41U);
      EXPECT_EQ(report.replicas[i].transport, TransportKind::kLoopback);
      EXPECT_EQ(report.replicas[i].stage_ms, 3);
      EXPECT_EQ(report.replicas[i].verify_ms, 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, WeightPublisherSyncTest,
                         testing::Values(Setting{1, 1, 1, Snapshot::kNone}, Setting{2, 1, 1, Snapshot::kNone},
                                         Setting{3, 2, 1, Snapshot::kNone}, Setting{2, 2, 3, Snapshot::kNone},
                                         Setting{1, 1, 1, Snapshot::kHost}, Setting{2, 2, 1, Snapshot::kHost},
                                         Setting{3, 1, 3, Snapshot::kHost}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return fmt::format(
                               "{}TrainerRanks{}EngineRanks{}Replicas{}", setting.param.trainer_ranks,
                               setting.param.engine_ranks, setting.param.replicas,
                               setting.param.snapshot == Snapshot::kNone ? "NoSnapshot" : "HostSnapshot");
                         });

// C-031.
TEST_F(WeightPublisherTest, ReplicasOfSeveralSizesGetTheirOwnCutsOfOneVersion) {
  UseTrainer(3);
  AddEngine(/*engine_ranks=*/1);
  AddEngine(/*engine_ranks=*/2);
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  for (const int engine : {0, 1})
    ExpectEngineHoldsTrainersTensors(*engines_[static_cast<std::size_t>(engine)], engine + 1);
  EXPECT_EQ(engines_[0]->live(), engines_[1]->live());
}

TEST_F(WeightPublisherTest, ReportedBytesAreThoseOfTheTensorsAndOfTheFramesThatArrived) {
  const ScriptedEngine& engine = AddEngine();
  MakePublisher();

  const PublishReport report = Publish();

  std::int64_t payload_bytes = 0;
  for (const TensorSpec& tensor : ShardedTrainer::WireTensors()) payload_bytes += tensor.Bytes();
  EXPECT_EQ(report.bytes, payload_bytes);
  EXPECT_EQ(report.wire_bytes, engine.account().frame_bytes);
}

TEST_F(WeightPublisherTest, OneConnectionAndItsRoutesServeEveryPublish) {
  const ScriptedEngine& engine = AddEngine(/*engine_ranks=*/2);
  MakePublisher();

  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Publish().AllCommitted());

  EXPECT_EQ(engine.account().connections, 1);
  EXPECT_THAT(engine.account().credits, SizeIs(4));  // two trainer ranks to two engine ranks, opened once
}

// C-101.
TEST_F(WeightPublisherTest, RoutesHaveTheCreditsBothSidesAllowAndFramesOfABucket) {
  const ScriptedEngine& engine = AddEngine();
  options_.credits = 64;
  MakePublisher();

  EXPECT_TRUE(Publish().AllCommitted());

  EXPECT_THAT(engine.account().credits, ElementsAre(6, 6));  // what the engine grants
  for (const std::int64_t limit : engine.account().frame_limits) {
    EXPECT_LE(limit, options_.bucket_bytes + 2048);  // header and slice digests on top
  }
}

// C-028.
TEST_F(WeightPublisherTest, NothingOfTheTrainersIsReadOnceAllReplicasHaveSealed) {
  AddEngine().Play({.hold = EngineStep::kFlip});
  AddEngine();
  MakePublisher();
  const Hash256 digest = ExpectedDigest();

  const auto handle = Begin();
  ASSERT_TRUE(handle->WaitPacked(Soon()).ok());
  trainer_->TakeMemoryAway();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  engines_[0]->Play({});
  const auto report = handle->WaitCommitted(Soon());

  trainer_->GiveMemoryBack();
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->AllCommitted());
  EXPECT_EQ(report->version.digest, digest);
}

// C-028.
TEST_F(WeightPublisherTest, PackedDoesNotComeBeforeEveryReplicaHasSealed) {
  AddEngine().Play({.hold = EngineStep::kSeal});
  AddEngine();
  MakePublisher();

  const auto handle = Begin();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return !account.seals.empty(); }));
  const Status packed = handle->WaitPacked(Deadline::At(clock_.Now()));

  EXPECT_EQ(packed.reason(), "deadline");
  engines_[0]->Play({});
  EXPECT_TRUE(handle->WaitPacked(Soon()).ok());
  EXPECT_TRUE(handle->WaitCommitted(Soon())->AllCommitted());
}

// C-028.
TEST_F(WeightPublisherTest, WithAHostSnapshotNothingOfTheTrainersIsReadAfterTheCopy) {
  AddEngine().Play({.hold = EngineStep::kOffer});
  options_.snapshot = Snapshot::kHost;
  MakePublisher();
  const Hash256 digest = ExpectedDigest();

  const auto handle = Begin();
  ASSERT_TRUE(handle->WaitPacked(Soon()).ok());  // before the first bucket
  trainer_->TakeMemoryAway();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  EXPECT_EQ(engines_[0]->account().frames, 0);
  engines_[0]->Play({});
  const auto report = handle->WaitCommitted(Soon());

  trainer_->GiveMemoryBack();
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->AllCommitted());
  EXPECT_EQ(report->version.digest, digest);
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
}

TEST_F(WeightPublisherTest, ASecondPublishIsRefusedWhileOneIsUnderWay) {
  AddEngine().Play({.hold = EngineStep::kFlip});
  MakePublisher();
  const auto handle = Begin();

  const auto second = publisher_->Publish({});

  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(second.status().reason(), "publish_in_progress");
  engines_[0]->Play({});
  EXPECT_TRUE(handle->WaitCommitted(Soon())->AllCommitted());
  EXPECT_TRUE(Publish().AllCommitted());
}

TEST_F(WeightPublisherTest, CancelTellsTheEngineAndEndsThePublish) {
  for (const EngineStep step : {EngineStep::kOffer, EngineStep::kBucket, EngineStep::kSeal, EngineStep::kFlip}) {
    engines_.clear();
    options_.replicas.clear();
    const ScriptedEngine& engine = AddEngine();
    engines_[0]->Play({.step = step, .deed = EngineDeed::kStall});
    MakePublisher();
    const auto handle = Begin();
    ASSERT_TRUE(engine.WaitFor([](const auto& account) { return account.misdeeds > 0; }));

    publisher_->Cancel();
    const auto report = handle->WaitCommitted(Soon());

    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->replicas[0].status.code(), StatusCode::kCancelled);
    EXPECT_EQ(report->replicas[0].status.reason(), "cancelled");
    EXPECT_TRUE(handle->WaitPacked(Soon()).ok());
    ASSERT_TRUE(engine.WaitFor([](const auto& account) { return !account.aborts.empty(); }));
    EXPECT_EQ(engine.account().aborts[0].reason(), "cancelled");
    engines_[0]->Play({});
    EXPECT_TRUE(Publish().AllCommitted());
    publisher_.reset();
  }
}

TEST_F(WeightPublisherTest, DestructionCancelsARunningPublish) {
  const ScriptedEngine& engine = AddEngine();
  engines_[0]->Play({.step = EngineStep::kFlip, .deed = EngineDeed::kStall});
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engine.WaitFor([](const auto& account) { return account.misdeeds > 0; }));

  publisher_.reset();

  const auto report = handle->WaitCommitted(Deadline::At(clock_.Now()));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->replicas[0].status.reason(), "cancelled");
}

// A trainer that has restarted, and an engine that lost its weights in a flip in place: what it had is taken still.
TEST_F(WeightPublisherTest, TheNextNumberIsAboveTheHighestOfAReplicaThatHasNothingLive) {
  AddEngine().SetLive({.run = "", .number = 5, .digest = {}});
  options_.run = "run";
  options_.new_run = true;
  MakePublisher();

  EXPECT_EQ(Publish().version.number, 6u);
}

TEST_F(WeightPublisherTest, TheNextNumberIsOneAboveTheHighestSeenOnAnyReplica) {
  AddEngine().SetLive({.run = "base", .number = 4, .digest = {}});
  AddEngine().SetLive({.run = "base", .number = 9, .digest = {}});
  MakePublisher();

  EXPECT_EQ(Publish().version.number, 10U);
  EXPECT_EQ(Publish({.number = 40}).version.number, 40U);
  EXPECT_EQ(Publish().version.number, 41U);
}

TEST_F(WeightPublisherTest, AReusedNumberIsRefusedByTheEngineAndThePublisherGoesOn) {
  AddEngine();
  MakePublisher();
  ASSERT_TRUE(Publish({.number = 7}).AllCommitted());

  const PublishReport reused = Publish({.number = 7});

  EXPECT_EQ(reused.replicas[0].status.reason(), "version_reused");
  EXPECT_EQ(reused.replicas[0].phase, "offer");
  EXPECT_EQ(engines_[0]->live().number, 7U);
  EXPECT_EQ(Publish().version.number, 8U);
}

TEST_F(WeightPublisherTest, ARunOfItsOwnIsOfferedAsNewUntilItIsLive) {
  AddEngine().SetLive({.run = "old", .number = 30, .digest = {}});
  options_.run = "fresh";
  options_.new_run = true;
  MakePublisher();

  EXPECT_EQ(Publish().version, (WeightVersion{.run = "fresh", .number = 1, .digest = ExpectedDigest()}));
  EXPECT_EQ(Publish().version.number, 2U);

  const std::vector<Offer> offers = engines_[0]->account().offers;
  EXPECT_TRUE(offers[0].manifest.new_run);
  EXPECT_FALSE(offers[1].manifest.new_run);
}

TEST_F(WeightPublisherTest, WithoutARunAndWithNothingLiveThereIsNoRunToGoOnWith) {
  AddEngine().SetLive({});
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.reason(), "no_run");
  EXPECT_TRUE(engines_[0]->account().offers.empty());
}

TEST_F(WeightPublisherTest, TheOfferCarriesLabelsModelAndTakeover) {
  AddEngine();
  options_.model = "TinyForCausalLM layers=1";
  MakePublisher();

  Publish();
  Publish({.labels = {{"step", "8"}}, .take_over = true});

  const std::vector<Offer> offers = engines_[0]->account().offers;
  EXPECT_EQ(offers[1].manifest.model, "TinyForCausalLM layers=1");
  EXPECT_EQ(offers[1].manifest.labels.at("step"), "8");
  EXPECT_FALSE(offers[0].take_over);
  EXPECT_TRUE(offers[1].take_over);
  EXPECT_GT(offers[1].term, offers[0].term);
}

TEST_F(WeightPublisherTest, AReplicaThatTakesOtherTypesIsRefusedAndTheFirstGoesOn) {
  AddEngine();
  std::vector<TensorSpec> tensors = ShardedTrainer::WireTensors();
  tensors[2].dtype = DType::kF32;
  AddEngine(PlainLayout(tensors));
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.replicas[0].status.ok());
  EXPECT_EQ(report.replicas[1].status.reason(), "replicas_differ");
  EXPECT_THAT(report.replicas[1].status.message(), HasSubstr("engine-0"));
}

TEST_F(WeightPublisherTest, StatusAndHistoryTellWhatBecameOfEveryPublish) {
  const auto began = clock_.WallNow();
  AddEngine();
  MakePublisher();
  const auto mark = publisher_->WaitForChange(0, Soon());
  ASSERT_TRUE(mark.ok());

  const PublishReport good = Publish();
  engines_[0]->Play({.step = EngineStep::kOffer, .deed = EngineDeed::kAbort});
  Publish();

  EXPECT_TRUE(publisher_->WaitForChange(*mark, Soon()).ok());
  const PublisherStatus status = publisher_->status();
  EXPECT_EQ(status.newest, good.version);
  EXPECT_FALSE(status.publishing);
  ASSERT_THAT(status.replicas, SizeIs(1));
  EXPECT_EQ(status.replicas[0].status.reason(), "scripted");
  const std::vector<PublishReport> history = publisher_->History();
  ASSERT_THAT(history, SizeIs(2));
  EXPECT_TRUE(history[0].AllCommitted());
  EXPECT_GE(history[0].at, began);
  EXPECT_LE(history[0].at, history[1].at);
  EXPECT_LE(history[1].at, clock_.WallNow());
  EXPECT_FALSE(history[1].AllCommitted());
}

TEST_F(WeightPublisherTest, TwoHundredPublishesGrowNeitherThreadsNorDescriptors) {
  AddEngine(/*engine_ranks=*/2);
  options_.snapshot = Snapshot::kHost;
  MakePublisher();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Publish().AllCommitted());
  const std::size_t descriptors = OpenDescriptors();
  const std::size_t threads = RunningThreads();

  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Publish().AllCommitted());

  EXPECT_LE(OpenDescriptors(), descriptors);
  // The thread of the last publish may be about to end.
  EXPECT_TRUE(Eventually([&] { return RunningThreads() <= threads; },
                         Deadline::After(Clock::Real(), std::chrono::seconds(10))));
  EXPECT_EQ(engines_[0]->account().connections, 1);
}

TEST_F(WeightPublisherTest, BadOptionsAreRefused) {
  options_.control = &control_;
  options_.transports = {&dialer_};
  const auto reason_with = [&](const auto& change) {
    WeightPublisherOptions options = options_;
    options.replicas = {"engine-0"};
    change(options);
    const auto made = WeightPublisher::Create(options, trainer_->Source());
    return made.ok() ? std::string("made") : made.status().reason();
  };

  EXPECT_EQ(reason_with([](WeightPublisherOptions&) {}), "made");
  EXPECT_EQ(reason_with([](auto& o) { o.replicas.clear(); }), "no_replica");
  EXPECT_EQ(reason_with([](auto& o) { o.replicas = {"a", "a"}; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.control = nullptr; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.transports.clear(); }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.transports = {nullptr}; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.new_run = true; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.bucket_bytes = 4095; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.bucket_bytes = std::int64_t{1} << 40; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.credits = 0; }), "bad_options");
  EXPECT_EQ(reason_with([](auto& o) { o.deadline = Duration::zero(); }), "bad_options");
}

TEST_F(WeightPublisherTest, ALayoutThatHoldsAShardTwiceIsRefused) {
  options_.control = &control_;
  options_.transports = {&dialer_};
  options_.replicas = {"engine-0"};
  TensorSource source(1);
  const std::vector<float> data(4);
  const ShardView shard{.tensor = {"w", DType::kF32, {4}}, .box = Box::Whole({4}), .data = data.data(), .stride = {}};
  ASSERT_TRUE(source.Add(0, shard).ok());
  ASSERT_TRUE(source.Add(0, shard).ok());

  const auto made = WeightPublisher::Create(options_, std::move(source));

  EXPECT_EQ(made.status().reason(), "bad_layout");
}

}  // namespace
}  // namespace bascule
