#include <cstring>

#include "tests/support/process_census.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

TEST_F(ReceiverTest, TheFirstVersionIsTheInitialLoadAndLiesWhereTheMapSays) {
  auto publisher = Greeted();
  const Offer offer = publisher->MakeOffer(1);

  publisher->Publish(offer);

  ExpectLiveBytesOf(1);
  const ReceiverStatus status = receiver_->status();
  EXPECT_EQ(status.live, publisher->VersionOf(offer));
  EXPECT_EQ(status.kept, std::nullopt);
  EXPECT_EQ(status.flip_count, 0u);
  EXPECT_EQ(status.session.has_value(), false);
  EXPECT_TRUE(status.last_error.ok());
  EXPECT_EQ(status.live_since, clock_.WallNow());
  const std::vector<HistoryEntry> history = receiver_->History();
  ASSERT_EQ(history.size(), 1u);
  EXPECT_EQ(history[0].kind, HistoryEntry::Kind::kInitial);
  EXPECT_TRUE(history[0].committed);
  EXPECT_EQ(history[0].version, publisher->VersionOf(offer));
  EXPECT_EQ(history[0].bytes, publisher->plan().payload_bytes);
}

TEST_F(ReceiverTest, TheNextVersionFlipsAndTheOldOneIsKept) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);

  const FlipReport report = publisher->Publish(offer);

  ExpectLiveBytesOf(2);
  EXPECT_EQ(receiver_->status().kept->number, 1u);
  EXPECT_EQ(receiver_->status().flip_count, 1u);
  EXPECT_EQ(receiver_->status().stall_us_p99, 7.0);
  EXPECT_EQ(report.version, publisher->VersionOf(offer));
  EXPECT_EQ(report.step, 102u);
  EXPECT_EQ(report.flip_stall_us, 7.0);
  EXPECT_EQ(report.kv, (KvReport{.recomputed = 2, .recompute_tokens = 10}));
}

// C-008.
TEST_F(ReceiverTest, I9CachesAreToldInsideTheCriticalSectionWhenLabelAndBytesHaveChanged) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);

  publisher->Publish(offer);

  const std::vector<WeightVersion> invalidated = hooks_.invalidated();
  ASSERT_EQ(invalidated.size(), 2u);
  EXPECT_EQ(invalidated[1], publisher->VersionOf(offer));
  EXPECT_EQ(hooks_.live_inside()[1], publisher->VersionOf(offer));
}

TEST_F(ReceiverTest, TheFlipWaitsForTheStepThatThePublisherNames) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);

  publisher->Send(Flip{offer.session, /*at_step=*/5000});

  EXPECT_EQ(publisher->Expect<Committed>().report.step, 5000u);
}

// C-022.
TEST_F(ReceiverTest, NoPoisonOfTheShadowSlotSurvivesStaging) {
  auto publisher = WithVersionOne();
  std::vector<std::span<const std::byte>> shadow;  // of version 1, which version 3 will overwrite
  {
    const WeightLease lease = receiver_->AcquireLive();
    for (int rank = 0; rank < 2; ++rank) {
      for (int tensor = 0; tensor < 3; ++tensor) shadow.push_back(lease.Tensor(rank, tensor));
    }
  }
  publisher->Publish(publisher->MakeOffer(2));
  for (const auto bytes : shadow) std::memset(const_cast<std::byte*>(bytes.data()), 0xFF, bytes.size());

  publisher->Publish(publisher->MakeOffer(3));

  ExpectLiveBytesOf(3);
}

TEST_F(ReceiverTest, LiveMemoryDigestsToTheSealAndOneFlippedBitShows) {
  auto publisher = WithVersionOne();

  EXPECT_EQ(receiver_->DigestLive()->totals, publisher->SealOf(1).digests);

  const WeightLease lease = receiver_->AcquireLive();
  const_cast<std::byte&>(lease.Tensor(1, 0)[17]) ^= std::byte{4};
  const auto digests = receiver_->DigestLive()->totals;
  EXPECT_NE(digests[0], publisher->SealOf(1).digests[0]);
  EXPECT_EQ(digests[3], publisher->SealOf(1).digests[3]);
}

TEST_F(ReceiverTest, AReplicaThatDiffersInLiveMemoryIsNamed) {
  auto publisher = WithVersionOne();
  const WeightLease lease = receiver_->AcquireLive();
  const_cast<std::byte&>(lease.Tensor(1, 1)[3]) ^= std::byte{1};

  const auto live = receiver_->DigestLive();

  ASSERT_TRUE(live.ok()) << live.status().ToString();
  ASSERT_EQ(live->replica_differences.size(), 1U);
  const Verifier::Difference& difference = live->replica_differences.front();
  EXPECT_EQ(receiver_->layout().tensors[static_cast<std::size_t>(difference.tensor)].name, "b");
  EXPECT_NE(difference.what.find("engine rank 1"), std::string::npos) << difference.what;
  EXPECT_EQ(live->totals, publisher->SealOf(1).digests) << "those of the owners";
}

TEST_F(ReceiverTest, NothingLiveHasNoDigestNoLeaseAndNoWayBack) {
  EXPECT_EQ(receiver_->DigestLive().status().reason(), "nothing_live");
  EXPECT_TRUE(receiver_->AcquireLive().empty());
  EXPECT_EQ(receiver_->Rollback(std::nullopt, Soon()).status().reason(), "no_kept_version");
}

TEST_F(ReceiverTest, AWatcherSeesTheStatesOfASessionAndItsBytes) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  const auto state = [&] { return receiver_->status().session->state; };

  publisher->BeginSession(offer);
  EXPECT_EQ(state(), SessionState::kReceiving);
  EXPECT_EQ(receiver_->status().session->received_bytes, 0);
  publisher->StageAndSeal(offer);

  const ReceiverStatus status = receiver_->status();
  EXPECT_EQ(status.session->state, SessionState::kReady);
  EXPECT_EQ(status.session->version, publisher->VersionOf(offer));
  EXPECT_EQ(status.session->received_bytes, status.session->total_bytes);
  EXPECT_EQ(status.live->number, 1u);
  EXPECT_EQ(status.newest_seen, 2u);

  std::uint64_t mark = *receiver_->WaitForChange(0, Soon());
  EXPECT_EQ(receiver_->WaitForChange(mark, Deadline::After(clock_, Duration::zero())).status().reason(), "deadline");
  publisher->FlipNow(offer);
  EXPECT_TRUE(receiver_->WaitForChange(mark, Soon()).ok());
}

TEST_F(ReceiverTest, WhoFollowsTheChangesMissesNoneHoweverShortItWas) {
  auto publisher = WithVersionOne();
  const std::uint64_t mark = *receiver_->WaitForChange(0, Soon());

  publisher->Publish(publisher->MakeOffer(2));

  const StatusChanges changes = *receiver_->ChangesSince(mark, Soon());
  std::vector<std::optional<SessionState>> states;
  for (const ReceiverStatus& status : changes.statuses) {
    states.push_back(status.session ? std::optional(status.session->state) : std::nullopt);
    EXPECT_EQ(status.live->number, status.session ? 1u : 2u);
  }
  EXPECT_EQ(states,
            (std::vector<std::optional<SessionState>>{
                SessionState::kOffered, SessionState::kReceiving, SessionState::kSealed, SessionState::kReady, {}}));
  EXPECT_EQ(*receiver_->WaitForChange(0, Soon()), changes.mark);
}

TEST_F(ReceiverTest, AnotherModelIsRefusedAtHelloWithBothSpelledOutAndBeforeATensorIsMissed) {
  auto publisher = Connect();
  Hello hello;
  hello.model = "OtherModel layers=2";
  hello.sender_layout = PlainLayout({{"other", DType::kF32, {4}}});

  publisher->Send(hello);

  const Status why = publisher->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "wrong_model");
  EXPECT_EQ(why.message(), R"(publisher has "OtherModel layers=2", engine has "TestModel layers=1")");
}

TEST_F(ReceiverTest, TheReplyToHelloSaysWhatIsLiveAndWhatWasCommitted) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(5));
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  auto second = Greeted();

  EXPECT_EQ(second->reply().live.number, 1u);
  EXPECT_EQ(second->reply().highest_number, 5u);
  EXPECT_EQ(second->reply().model, "TestModel layers=1");
  EXPECT_EQ(second->reply().endpoints, (std::vector{TransportEndpoint{TransportKind::kLoopback, "engine"}}));
  EXPECT_NE(second->reply().connection, publisher->reply().connection);
}

TEST_F(ReceiverTest, ReadersOfTheOldVersionKeepItAcrossAFlipAndHoldUpOnlyTheNextSession) {
  auto publisher = WithVersionOne();
  WeightLease reader = receiver_->AcquireLive();

  publisher->Publish(publisher->MakeOffer(2));
  EXPECT_EQ(reader.version().number, 1u);
  const Offer offer = publisher->MakeOffer(3);
  publisher->Send(offer);
  WaitFor(
      [](const ReceiverStatus& status) { return status.session && status.session->state == SessionState::kOffered; });
  reader = WeightLease();

  EXPECT_EQ(publisher->Expect<Accept>().session, offer.session);
  publisher->StageAndSeal(offer);
  publisher->FlipNow(offer);
  ExpectLiveBytesOf(3);
}

TEST_F(ReceiverTest, TwoHundredSessionsLeaveNoThreadAndNoDescriptorBehind) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  const std::size_t threads = RunningThreads();
  const std::size_t descriptors = OpenDescriptors();

  for (std::uint64_t number = 3; number < 203; ++number) {
    const Offer offer = publisher->MakeOffer(number);
    if (number % 5 == 0) {
      publisher->BeginSession(offer);
      publisher->Send(Abort{offer.session, Status::Cancelled("cancelled")});
      EXPECT_EQ(publisher->Expect<Abort>().session, offer.session);
    } else {
      publisher->Publish(offer);
    }
  }

  EXPECT_TRUE(Eventually([&] { return RunningThreads() <= threads; },
                         Deadline::After(Clock::Real(), std::chrono::seconds(10))));
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(receiver_->status().flip_count, 161u);
  EXPECT_EQ(receiver_->History().size(), 202u);
}

TEST_F(ReceiverTest, DestroyingTheReceiverEndsItsConnectionsAndTheirPeersLearnIt) {
  auto publisher = WithVersionOne();
  publisher->BeginSession(publisher->MakeOffer(2));

  Stop();

  EXPECT_FALSE(publisher->channel().Receive(Soon()).ok());
}

TEST_F(ReceiverTest, OptionsThatMakeNoReceiverAreRefused) {
  WeightReceiverOptions options;
  options.layout = EngineLayoutForTest();
  options.slot_count = 1;
  EXPECT_EQ(WeightReceiver::Create(options, hooks_).status().reason(), "bad_options");

  options.slot_count = 2;
  options.layout.ranks[1].rows.pop_back();  // the padding: now nobody covers it
  EXPECT_EQ(WeightReceiver::Create(options, hooks_).status().reason(), "bad_layout");
}

}  // namespace
}  // namespace bascule
