// Partial versions from a trainer's tensors to an engine's memory, each side as it ships.
#include <map>
#include <random>

#include "bridge/plan/name_match_internal.h"
#include "tests/e2e/sync/sync_fixture.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// A version: every tensor whole, in its wire type, and as each engine rank stores it.
struct Contents {
  std::vector<Bytes> whole;
  std::vector<std::vector<Bytes>> ranks;  // by rank and tensor

  friend bool operator==(const Contents&, const Contents&) = default;
};

Contents ContentsOf(const ShardedTrainer& trainer, int engine_ranks) {
  Contents contents{.whole = trainer.WireBytes(), .ranks = {}};
  for (int rank = 0; rank < engine_ranks; ++rank) {
    std::vector<Bytes>& tensors = contents.ranks.emplace_back();
    for (int t = 0; t < static_cast<int>(contents.whole.size()); ++t) {
      tensors.push_back(trainer.EngineBytes(engine_ranks, rank, t));
    }
  }
  return contents;
}

// `base` with those tensors of `sent` that a pattern of `scope` matches.
Contents Replaced(Contents base, const Contents& sent, const std::vector<std::string>& scope) {
  const std::vector<TensorSpec> tensors = ShardedTrainer::WireTensors(kRows);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto matches = [&](const std::string& pattern) { return MatchesPattern(pattern, tensors[t].name); };
    if (std::ranges::none_of(scope, matches)) continue;
    base.whole[t] = sent.whole[t];
    for (std::size_t r = 0; r < base.ranks.size(); ++r) base.ranks[r][t] = sent.ranks[r][t];
  }
  return base;
}

Hash256 DigestOf(const Contents& contents) {
  return OracleVersionDigest(ShardedTrainer::WireTensors(kRows), contents.whole);
}

class PartialSyncTest : public SyncFixture {
 protected:
  std::vector<std::vector<Bytes>> LiveBytes() {
    const WeightLease lease = receiver_->AcquireLive();
    std::vector<std::vector<Bytes>> ranks;
    for (int rank = 0; rank < std::ssize(receiver_->layout().ranks); ++rank) {
      std::vector<Bytes>& tensors = ranks.emplace_back();
      for (int t = 0; t < std::ssize(receiver_->layout().ranks[static_cast<std::size_t>(rank)].tensors); ++t) {
        const std::span<const std::byte> bytes = lease.Tensor(rank, t);
        tensors.emplace_back(bytes.begin(), bytes.end());
      }
    }
    return ranks;
  }
  void Restart(int trainer_ranks, int engine_ranks) {
    publisher_.reset();
    StopEngine();
    UseLoopback();
    StartEngine(engine_ranks);
    StartTrainer(trainer_ranks);
  }
  static Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::minutes(1)); }
};

// C-017.
TEST_F(PartialSyncTest, ADeclaredScopeIsAcceptedAnUndeclaredOneAndOneWithoutANameAreNot) {
  UseLoopback();
  StartEngine(/*engine_ranks=*/2);
  StartTrainer(/*trainer_ranks=*/1);
  ASSERT_TRUE(Publish().AllCommitted());
  const Contents base = ContentsOf(*trainer_, 2);
  // From here on the trainer holds what it trains and no more.
  const std::vector<float> norm(50, 0.5F);
  const float scale = 2;
  TensorSource source(/*trainer_ranks=*/1);
  const auto bytes_of = [](const auto* data) { return reinterpret_cast<const std::byte*>(data); };
  ASSERT_TRUE(source
                  .Add(0, {.tensor = {"norm", DType::kF32, {50}},
                           .box = Box::Whole({50}),
                           .data = bytes_of(norm.data()),
                           .stride = {}})
                  .ok());
  ASSERT_TRUE(
      source
          .Add(0, {.tensor = {"scale", DType::kF32, {}}, .box = Box::Whole({}), .data = bytes_of(&scale), .stride = {}})
          .ok());
  publisher_ = *WeightPublisher::Create(options_, std::move(source));

  const PublishReport undeclared = Publish();
  const PublishReport incomplete = Publish({.scope = {"norm", "scale", "up.*"}});
  const PublishReport declared = Publish({.scope = {"norm", "sc*"}});

  EXPECT_EQ(undeclared.replicas[0].status.reason(), "tensor_missing");
  EXPECT_EQ(incomplete.replicas[0].status.reason(), "tensor_missing");
  EXPECT_THAT(incomplete.replicas[0].status.message(), HasSubstr("up.weight"));
  ASSERT_TRUE(declared.AllCommitted()) << declared.replicas[0].status.ToString();
  EXPECT_EQ(declared.bytes, 50 * 4 * 2 + 4 * 2) << "to both engine ranks";
  EXPECT_THAT(declared.scope, ElementsAre("norm", "sc*"));
  EXPECT_EQ(declared.base->digest, DigestOf(base));
  const auto live = LiveBytes();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const std::size_t kept : {0, 1, 2, 5}) EXPECT_EQ(live[rank][kept], base.ranks[rank][kept]);
    EXPECT_EQ(std::memcmp(live[rank][3].data(), norm.data(), 200), 0);
  }
}

// Any scopes one after another, with whole versions and rollbacks between them, into either kind of slots: the engine
// holds the base with the tensors in scope replaced, under the digest of all of it.
TEST_F(PartialSyncTest, TheEngineHoldsTheBaseWithWhatIsInScopeReplaced) {
  const std::vector<TensorSpec> tensors = ShardedTrainer::WireTensors(kRows);
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const int engine_ranks = 1 + static_cast<int>(random() % 2);
    receiver_options_.flip = random() % 3 == 0 ? FlipMode::kInPlace : FlipMode::kShadow;
    receiver_options_.slot_count = receiver_options_.flip == FlipMode::kShadow && random() % 2 == 0 ? 3 : 2;
    options_.snapshot = random() % 2 == 0 ? Snapshot::kHost : Snapshot::kNone;
    options_.gather = random() % 3 == 0;
    Restart(/*trainer_ranks=*/1 + static_cast<int>(random() % 3), engine_ranks);
    trainer_->Fill(static_cast<std::uint32_t>(random()));
    ASSERT_TRUE(Publish().AllCommitted());
    std::map<std::uint64_t, Contents> versions = {{1, ContentsOf(*trainer_, engine_ranks)}};
    for (int step = 0; step < 8; ++step) {
      if (step > 0 && random() % 4 == 0) {
        ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
      }
      const WeightVersion base = *receiver_->status().live;
      std::vector<std::string> scope;
      for (const TensorSpec& tensor : tensors) {
        if (random() % 3 == 0) scope.push_back(random() % 2 == 0 ? tensor.name : tensor.name.substr(0, 4) + "*");
      }
      trainer_->Fill(static_cast<std::uint32_t>(random()));

      const PublishReport report = Publish({.scope = scope, .base = base});

      ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
      const Contents sent = ContentsOf(*trainer_, engine_ranks);
      const Contents& expected = versions[report.version.number] =
          scope.empty() ? sent : Replaced(versions.at(base.number), sent, scope);
      ASSERT_EQ(LiveBytes(), expected.ranks);
      ASSERT_EQ(report.version.digest, DigestOf(expected));
      ASSERT_EQ(receiver_->status().live, report.version);
    }
  }
}

// Scopes that follow one another over connections that stand; what is sent is what is in scope and no more.
TEST_F(PartialSyncTest, ANewScopeBeginsANewConnectionAndTheSameOneGoesOn) {
  UseLoopback();
  StartEngine(1);
  StartTrainer(2);
  const std::int64_t whole = Publish().bytes;

  EXPECT_LT(Publish({.scope = {"norm"}}).bytes, whole);
  EXPECT_EQ(Publish({.scope = {"norm"}}).bytes, 50 * 4);
  EXPECT_EQ(Publish({.scope = {"*"}}).bytes, whole);
  const PublishReport last = Publish();

  EXPECT_EQ(last.bytes, whole);
  EXPECT_EQ(last.version.number, 5U);
  ExpectLive(last);
}

TEST_F(PartialSyncTest, AnEngineThatTakesFullTensorsOnlyTakesThoseInScope) {
  receiver_options_.full_tensors_only = true;
  UseLoopback();
  StartEngine(2);
  StartTrainer(3);
  ASSERT_TRUE(Publish().AllCommitted());
  const Contents base = ContentsOf(*trainer_, 2);
  trainer_->Fill(2);

  const PublishReport report = Publish({.scope = {"layer.*"}});

  ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
  const Contents expected = Replaced(base, ContentsOf(*trainer_, 2), {"layer.*"});
  EXPECT_EQ(LiveBytes(), expected.ranks);
  EXPECT_EQ(report.version.digest, DigestOf(expected));
}

TEST_F(PartialSyncTest, AnEngineWithNothingLiveHasNothingToBuildOn) {
  UseLoopback();
  StartEngine(1);
  StartTrainer(1);

  const PublishReport report = Publish({.scope = {"norm"}});

  EXPECT_EQ(report.replicas[0].status.reason(), "wrong_base");
  EXPECT_EQ(receiver_->status().live, std::nullopt);
  ExpectLive(Publish());
}

// A rollback that the trainer has not heard of: it builds on what it knows, unless it is told.
TEST_F(PartialSyncTest, ABaseThatWasRolledBackIsRefusedAndTheTrainerMayNameTheOneThatIsLive) {
  UseLoopback();
  StartEngine(1);
  StartTrainer(1);
  ASSERT_TRUE(Publish().AllCommitted());
  const Contents first = ContentsOf(*trainer_, 1);
  trainer_->Fill(2);
  ASSERT_TRUE(Publish().AllCommitted());
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  const WeightVersion live = *receiver_->status().live;

  const PublishReport refused = Publish({.scope = {"norm"}});
  const PublishReport named = Publish({.scope = {"norm"}, .base = live});

  EXPECT_EQ(refused.replicas[0].status.reason(), "wrong_base");
  EXPECT_THAT(refused.replicas[0].status.message(), HasSubstr("builds on run@2"));
  ASSERT_TRUE(named.AllCommitted()) << named.replicas[0].status.ToString();
  EXPECT_EQ(LiveBytes(), Replaced(first, ContentsOf(*trainer_, 1), {"norm"}).ranks);
}

// A trainer and several engines.
class PartialFleetTest : public PartialSyncTest {
 protected:
  struct Engine {
    std::unique_ptr<TransportListener> listener;
    std::unique_ptr<WeightReceiver> receiver;
    std::unique_ptr<LoopbackControl::Listener> serving;
  };
  ~PartialFleetTest() override {
    publisher_.reset();
    for (Engine& engine : engines_) engine.serving.reset();
  }

  void StartFleet(int engines) {
    dialer_ = std::make_unique<LoopbackDialer>(network_);
    for (int i = 0; i < engines; ++i) {
      const std::string address = AddressOf(engines_.size());
      Engine& engine = engines_.emplace_back();
      engine.listener = *LoopbackListener::Create(network_, address);
      WeightReceiverOptions options;
      options.layout = ShardedTrainer::EngineLayout(/*engine_ranks=*/1, kRows);
      options.listeners = {engine.listener.get()};
      engine.receiver = *WeightReceiver::Create(std::move(options), hooks_);
      engine.serving = *control_.Listen(address, [&receiver = *engine.receiver](ControlChannel& channel) {
        static_cast<void>(receiver.Serve(channel));
      });
    }
  }
  static std::string AddressOf(std::size_t engine) { return "engine-" + std::to_string(engine); }
  std::optional<WeightVersion> LiveOf(std::size_t engine) { return engines_[engine].receiver->status().live; }
  // A publisher of `trainer_` to these; it stays the source for others.
  std::unique_ptr<WeightPublisher> PublisherTo(const std::vector<std::string>& replicas, TensorSource source) {
    options_.replicas = replicas;
    options_.control = &control_;
    options_.transports = {dialer_.get()};
    return *WeightPublisher::Create(options_, std::move(source));
  }
  // A process for each of two ranks, and engine 0 as their fleet.
  std::vector<std::unique_ptr<WeightPublisher>> StartGroup(bool gather) {
    trainer_ = std::make_unique<ShardedTrainer>(2, kRows);
    options_.snapshot = Snapshot::kHost;
    options_.catch_up = true;
    options_.fleet.first_retry = std::chrono::milliseconds(1);
    options_.gather = gather;
    slices_ = *LoopbackListener::Create(network_, "rank-0-slices");
    std::vector<std::unique_ptr<WeightPublisher>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      options_.group = {.rank = rank, .world_size = 2, .leader = "rank-0", .name = "job", .host = &control_};
      if (rank == 0) options_.group.listeners = {slices_.get()};
      ranks.push_back(
          PublisherTo(rank == 0 ? std::vector{AddressOf(0)} : std::vector<std::string>(), trainer_->SourceOf(rank)));
    }
    return ranks;
  }
  PublishReport PublishAll(const std::vector<std::unique_ptr<WeightPublisher>>& ranks, const PublishRequest& request) {
    std::vector<std::shared_ptr<PublishHandle>> handles;
    for (const auto& rank : ranks) handles.push_back(*rank->Publish(request));
    for (const auto& handle : handles) CHECK(handle->WaitCommitted(Soon()).ok());
    return *handles.front()->WaitCommitted(Soon());
  }
  FleetRow Row(std::size_t engine) {
    for (const FleetRow& row : publisher_->status().fleet) {
      if (row.address == AddressOf(engine)) return row;
    }
    return {};
  }
  FleetWelcome Join(std::size_t engine) {
    return *publisher_->Join({.address = AddressOf(engine), .instance = {engine + 1}, .live = {}, .ready = false});
  }

  std::vector<Engine> engines_;
  std::unique_ptr<TransportListener> slices_;  // of full tensors that a group gathers
};

TEST_F(PartialFleetTest, AReplicaWithAnotherBaseIsRefusedByNameAndThePolicyDecides) {
  for (const PublishPolicy policy : {PublishPolicy::kEach, PublishPolicy::kAll}) {
    engines_.clear();
    StartFleet(2);
    ShardedTrainer other(1, kRows);
    other.Fill(9);
    trainer_ = std::make_unique<ShardedTrainer>(1, kRows);
    options_.policy = PublishPolicy::kEach;
    publisher_ = PublisherTo({AddressOf(1)}, other.Source());
    ASSERT_TRUE(Publish({.number = 1}).AllCommitted());
    publisher_ = PublisherTo({AddressOf(0)}, trainer_->Source());
    ASSERT_TRUE(Publish({.number = 1}).AllCommitted());
    options_.policy = policy;
    publisher_ = PublisherTo({AddressOf(0), AddressOf(1)}, trainer_->Source());

    const PublishReport report = Publish({.scope = {"norm"}});

    EXPECT_EQ(report.replicas[1].status.reason(), "wrong_base") << report.replicas[1].status.ToString();
    EXPECT_EQ(LiveOf(1)->number, 1U);
    EXPECT_EQ(report.replicas[0].status.ok(), policy == PublishPolicy::kEach);
    EXPECT_EQ(LiveOf(0)->number, policy == PublishPolicy::kEach ? 2U : 1U);
    publisher_.reset();
  }
}

TEST_F(PartialFleetTest, WhoComesLateGetsTheWholeVersionFromTheSnapshot) {
  StartFleet(2);
  trainer_ = std::make_unique<ShardedTrainer>(2, kRows);
  options_.snapshot = Snapshot::kHost;
  options_.catch_up = true;
  publisher_ = PublisherTo({AddressOf(0)}, trainer_->Source());
  ASSERT_TRUE(Publish().AllCommitted());
  const PublishReport report = Publish({.scope = {"layer.*"}});
  ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();

  const FleetWelcome welcome = Join(1);

  EXPECT_EQ(welcome.required, report.version);
  EXPECT_TRUE(welcome.publisher_sends);
  ASSERT_TRUE(Eventually([&] { return LiveOf(1) == report.version; }, Soon()));
  EXPECT_EQ(engines_[1].receiver->DigestLive()->totals, engines_[0].receiver->DigestLive()->totals);
}

// Each rank keeps its part of all tensors, though it sends some.
TEST_F(PartialFleetTest, WhoComesLateGetsTheWholeVersionFromEveryRankOfAGroup) {
  StartFleet(2);
  const auto ranks = StartGroup(/*gather=*/false);
  ASSERT_TRUE(PublishAll(ranks, {}).AllCommitted());
  const PublishReport report = PublishAll(ranks, {.scope = {"layer.*"}});
  ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();

  const FleetWelcome welcome = *ranks[0]->Join({.address = AddressOf(1), .instance = {2}, .live = {}, .ready = false});

  EXPECT_TRUE(welcome.publisher_sends);
  ASSERT_TRUE(Eventually([&] { return LiveOf(1) == report.version; }, Soon()));
  EXPECT_EQ(engines_[1].receiver->DigestLive()->totals, engines_[0].receiver->DigestLive()->totals);
}

// A rank that gives its slices to be gathered keeps no more than those.
TEST_F(PartialFleetTest, AGroupThatGatheredAPartOfTheTensorsLeavesLateReplicasToTheOthers) {
  StartFleet(2);
  const auto ranks = StartGroup(/*gather=*/true);
  ASSERT_TRUE(PublishAll(ranks, {}).AllCommitted());
  const PublishReport report = PublishAll(ranks, {.scope = {"layer.*"}});
  ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
  const auto join = [&] {
    return *ranks[0]->Join({.address = AddressOf(1), .instance = {2}, .live = {}, .ready = false});
  };

  join();

  ASSERT_TRUE(Eventually([&] { return !join().publisher_sends; }, Soon()));
  EXPECT_THAT(join().holders, ElementsAre(AddressOf(0)));
  EXPECT_EQ(LiveOf(1), std::nullopt);
}

// Its other tensors are not those of the base: what it would send is another version, and nobody may take it for this.
TEST_F(PartialFleetTest, ATrainerWhoseOtherTensorsAreNotTheBasesBringsNobodyUpToDate) {
  StartFleet(2);
  trainer_ = std::make_unique<ShardedTrainer>(1, kRows);
  options_.snapshot = Snapshot::kHost;
  options_.catch_up = true;
  publisher_ = PublisherTo({AddressOf(0)}, trainer_->Source());
  ASSERT_TRUE(Publish().AllCommitted());
  trainer_->Fill(2);
  const PublishReport report = Publish({.scope = {"layer.*"}});
  ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();

  EXPECT_TRUE(Join(1).publisher_sends) << "it does not know yet";

  ASSERT_TRUE(Eventually([&] { return !Row(1).last_error.ok(); }, Soon()));
  EXPECT_EQ(Row(1).last_error.reason(), "digest_mismatch") << Row(1).last_error.ToString();
  EXPECT_FALSE(Join(1).publisher_sends);
  EXPECT_THAT(Join(1).holders, ElementsAre(AddressOf(0)));
  EXPECT_EQ(LiveOf(1), std::nullopt);
  EXPECT_EQ(LiveOf(0), report.version);
}

TEST_F(PartialFleetTest, ATrainerThatHoldsOnlyWhatItTrainsLeavesLateReplicasToTheOthers) {
  StartFleet(2);
  trainer_ = std::make_unique<ShardedTrainer>(1, kRows);
  publisher_ = PublisherTo({AddressOf(0)}, trainer_->Source());
  ASSERT_TRUE(Publish().AllCommitted());
  const std::vector<float> norm(50, 0.5F);
  TensorSource source(/*trainer_ranks=*/1);
  ASSERT_TRUE(
      source.Add(0, {.tensor = {"norm", DType::kF32, {50}}, .box = Box::Whole({50}), .data = norm.data(), .stride = {}})
          .ok());
  options_.snapshot = Snapshot::kHost;
  options_.catch_up = true;
  publisher_ = PublisherTo({AddressOf(0)}, std::move(source));
  const PublishReport report = Publish({.scope = {"norm"}});
  ASSERT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();

  const FleetWelcome welcome = Join(1);

  EXPECT_EQ(welcome.required, report.version);
  EXPECT_FALSE(welcome.publisher_sends);
  EXPECT_THAT(welcome.holders, ElementsAre(AddressOf(0)));
}

}  // namespace
}  // namespace bascule
