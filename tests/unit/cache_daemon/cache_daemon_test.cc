// Engines of one host over one cache daemon: they map what it holds, follow it, and outlive it.
#include "engine_side/cache_daemon/cache_daemon.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/support/process_census.h"
#include "tests/unit/cache_daemon/host.h"

namespace bascule {
namespace {

std::vector<std::byte> Copy(const WeightLease& lease) {
  const auto bytes = lease.Tensor(1, 0);
  return {bytes.begin(), bytes.end()};
}

// Of /proc/self/smaps no line tells whose pages these are; that they are not copied, the census of mappings does.
TEST_F(HostTest, EnginesMapTheOneObjectThatTheDaemonHolds) {
  StartDaemon();
  cache_->Publish(3);

  Engine first = Attached(), second = Attached();

  ASSERT_TRUE(first.attached.ok()) << first.attached.status().ToString();
  ASSERT_TRUE(second.attached.ok());
  EXPECT_EQ(*first.attached, cache_->live());
  EXPECT_TRUE(first.replica->receiver().status().Ready());
  EXPECT_EQ(Copy(first.replica->receiver().AcquireLive()), Copy(cache_->receiver().AcquireLive()));
  EXPECT_EQ(MappingsOf("bascule_weights"), 3u * 2) << "of two ranks: the daemon's mapping and one of each engine";
  EXPECT_TRUE(Eventually([this] { return daemon_->status().engines.size() == 2; }, Soon()));
  const CacheDaemonStatus status = daemon_->status();
  EXPECT_EQ(status.phase, CachePhase::kHolding);
  ASSERT_EQ(status.objects.size(), 1u);
  EXPECT_EQ(status.objects[0].version, cache_->live());
  EXPECT_GT(status.objects[0].bytes, 64 * 64 * 4);
}

// C-125.
TEST_F(HostTest, AnEngineFollowsAFlipToANewObjectAndThoseWhoReadTheOldOneReadOn) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();
  const WeightLease reader = engine.replica->receiver().AcquireLive();
  const std::vector<std::byte> before = Copy(reader);
  const std::byte* const memory = reader.Tensor(1, 0).data();

  cache_->Publish(4);
  engine.replica->AwaitNumber(4);

  EXPECT_EQ(Copy(reader), before) << "a version is never changed under a mapping";
  EXPECT_NE(engine.replica->Memory(), memory);
  EXPECT_EQ(Copy(engine.replica->receiver().AcquireLive()), Copy(cache_->receiver().AcquireLive()));
}

TEST_F(HostTest, AnEngineFollowsARollbackOfTheDaemonByItsOwnWayBack) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();
  cache_->Publish(4);
  engine.replica->AwaitNumber(4);

  ASSERT_TRUE(cache_->receiver().Rollback(std::nullopt, Soon()).ok());
  engine.replica->AwaitNumber(3);

  EXPECT_EQ(engine.replica->receiver().History().back().kind, HistoryEntry::Kind::kRollback);
}

TEST_F(HostTest, WhatTheDaemonWasToldToLeaveAsRefusedItsEnginesDoNotKeepEither) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();
  cache_->Publish(4);
  engine.replica->AwaitNumber(4);

  ASSERT_TRUE(cache_->receiver().Rollback(std::nullopt, Soon(), /*refused=*/true).ok());
  engine.replica->AwaitNumber(3);

  EXPECT_EQ(engine.replica->receiver().Rollback(std::nullopt, Soon()).status().reason(), "no_kept_version");
  EXPECT_FALSE(cache_->receiver().status().kept);
}

TEST_F(HostTest, AVersionThatAPublisherBroughtToTheEngineIsNotReplacedByAnOlderOneOfTheDaemon) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();
  engine.replica->Publish(9);

  cache_->Publish(4);
  ASSERT_TRUE(Eventually(
      [this] {
        const auto engines = daemon_->status().engines;
        return engines.size() == 1 && engines[0].number == 9;
      },
      Soon()));

  EXPECT_EQ(engine.replica->number(), 9u);
  EXPECT_TRUE(engine.replica->receiver().status().Ready());
  cache_->Publish(10);
  engine.replica->AwaitNumber(10);
}

TEST_F(HostTest, TheSameVersionMayReachAnEngineByBothWays) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();

  engine.replica->Publish(4);
  cache_->Publish(4);

  engine.replica->AwaitNumber(4);
  ASSERT_TRUE(Eventually([this] { return daemon_->status().engines.at(0).number == 4; }, Soon()));
  EXPECT_TRUE(daemon_->status().engines.at(0).last_error.ok());
}

// C-125.
TEST_F(HostTest, EnginesOutliveTheDaemonAndDoNotGoBackWithOneThatStartsAnew) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();
  const std::vector<std::byte> before = Copy(engine.replica->receiver().AcquireLive());

  StopDaemon();
  EXPECT_EQ(Copy(engine.replica->receiver().AcquireLive()), before);
  EXPECT_TRUE(engine.replica->receiver().DigestLive().ok());
  StartDaemon();
  cache_->Publish(0, "checkpoint");
  ASSERT_TRUE(Eventually(
      [this] {
        const auto engines = daemon_->status().engines;
        return engines.size() == 1 && engines[0].run == "run";
      },
      Soon()))
      << "the engine attaches again, and reports what it has";

  EXPECT_EQ(engine.replica->number(), 3u);
  EXPECT_TRUE(engine.replica->receiver().status().Ready());
  StopDaemon();
  StartDaemon();
  cache_->Publish(5);
  engine.replica->AwaitNumber(5);
}

// C-122.
TEST_F(HostTest, AnEngineThatStartsBeforeThereIsAVersionWaitsForItUntilItsDeadline) {
  StartDaemon();
  auto engine = MakeReplica();
  const auto hurried = Follower(*engine);

  const Status nothing = hurried->Attach(Deadline::After(Clock::Real(), std::chrono::milliseconds(20)), {}).status();
  EXPECT_EQ(nothing.reason(), "deadline");
  EXPECT_EQ(daemon_->status().phase, CachePhase::kEmpty);
  const auto patient = Follower(*engine);
  Result<WeightVersion> attached = Status::Internal("unset");
  Worker waiting("waiting", [&](std::stop_token) { attached = patient->Attach(Soon(), {}); });
  ASSERT_TRUE(Eventually([this] { return !daemon_->status().engines.empty(); }, Soon()));
  cache_->Publish(1);
  waiting.Join();

  ASSERT_TRUE(attached.ok()) << attached.status().ToString();
  EXPECT_EQ(attached->number, 1u);
}

// C-125.
TEST_F(HostTest, ADaemonThatIsBehindItsFleetHandsNothingOutUntilItHasCaughtUp) {
  StartDaemon();
  cache_->Publish(3);
  cache_->receiver().Require({"run", 4, {}});
  EXPECT_EQ(daemon_->status().phase, CachePhase::kBehind);
  auto engine = MakeReplica();
  const auto follower = Follower(*engine);

  const Status status = follower->Attach(Deadline::After(Clock::Real(), std::chrono::milliseconds(20)), {}).status();

  EXPECT_EQ(status.reason(), "deadline");
  EXPECT_FALSE(engine->live());
  cache_->Publish(4);
  EXPECT_EQ(Attached().attached->number, 4u);
}

// The daemon came back with its own first version, and the engine came back to it, before the fleet's publisher did.
TEST_F(HostTest, AnEngineThatFindsADaemonBehindFollowsItToTheRunThatItIsCaughtUpWith) {
  StartDaemon();
  cache_->Publish(0, "base");
  Engine engine = Attached();
  StopDaemon();
  StartDaemon(/*keep=*/2, [](Replica& cache) {
    cache.Publish(0, "base");
    cache.receiver().Require({"run", 4, {}});
  });
  ASSERT_TRUE(Eventually([this] { return daemon_->status().engines.size() == 1; }, Soon()));

  cache_->Publish(4);

  engine.replica->AwaitNumber(4);
  EXPECT_EQ(engine.replica->live()->run, "run");
}

// C-124.
TEST_F(HostTest, ADaemonOfAnotherModelIsRefusedAndBothAreNamed) {
  StartDaemon();
  cache_->Publish(3);

  const Engine engine = Attached({.fingerprint = Fingerprint("OtherModel layers=9")});

  EXPECT_EQ(engine.attached.status().reason(), "fingerprint_mismatch");
  EXPECT_NE(engine.attached.status().message().find("OtherModel layers=9"), std::string::npos);
  EXPECT_NE(engine.attached.status().message().find("TestModel layers=1"), std::string::npos);
  EXPECT_FALSE(engine.replica->live());
}

// C-124.
TEST_F(HostTest, AnEngineThatDiffersInAnyPartOfItsFingerprintIsRefusedAndBothAreSpelledOut) {
  StartDaemon();
  cache_->Publish(3);
  const std::function<void(ArtifactFingerprint&)> others[] = {[](ArtifactFingerprint& f) { f.architecture += " tied"; },
                                                              [](ArtifactFingerprint& f) { f.tensor = 1; },
                                                              [](ArtifactFingerprint& f) { f.pipeline = 2; },
                                                              [](ArtifactFingerprint& f) { f.expert_parallel = true; },
                                                              [](ArtifactFingerprint& f) { f.dtype = "BF16"; },
                                                              [](ArtifactFingerprint& f) { f.quantization = "fp8"; }};
  for (const auto& differ : others) {
    ArtifactFingerprint fingerprint = Fingerprint();
    differ(fingerprint);

    const Engine engine = Attached({.fingerprint = fingerprint});

    EXPECT_EQ(engine.attached.status().reason(), "fingerprint_mismatch");
    EXPECT_NE(engine.attached.status().message().find(fingerprint.ToString()), std::string::npos);
    EXPECT_NE(engine.attached.status().message().find(Fingerprint().ToString()), std::string::npos);
    EXPECT_FALSE(engine.replica->live());
  }
}

TEST_F(HostTest, AnEngineThatFlipsInPlaceRefusesTheDaemonsMemory) {
  StartDaemon();
  cache_->Publish(3);
  auto engine = MakeReplica(WeightReceiverOptions{.flip = FlipMode::kInPlace});

  const Status status = Follower(*engine)->Attach(Soon(), {}).status();

  EXPECT_EQ(status.reason(), "slot_read_only");
  EXPECT_FALSE(engine->live());
}

TEST_F(HostTest, AnEngineMayAskForAVersionThatTheDaemonStillHolds) {
  StartDaemon(/*keep=*/2);
  for (const std::uint64_t number : {1, 2, 3}) {
    cache_->Publish(number);
    const auto held = [&] {
      const auto objects = daemon_->status().objects;
      return !objects.empty() && objects[0].version.number == number;
    };
    ASSERT_TRUE(Eventually(held, Soon()));
  }

  const Engine older = Attached({.number = 2}), gone = Attached({.number = 1});

  ASSERT_TRUE(older.attached.ok()) << older.attached.status().ToString();
  EXPECT_EQ(older.attached->number, 2u);
  EXPECT_EQ(gone.attached.status().reason(), "version_not_held");
}

TEST_F(HostTest, WithoutMemoryForAnotherVersionTheDaemonAndItsEnginesStayAtWhatTheyHave) {
  StartDaemon();
  cache_->Publish(3);
  Engine engine = Attached();
  memory_.scarce = true;

  const Status refused = cache_->TryOffer(4);

  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.reason(), "slot_memory");
  EXPECT_EQ(cache_->number(), 3u);
  EXPECT_EQ(engine.replica->number(), 3u);
  memory_.scarce = false;
  cache_->Publish(5);
  engine.replica->AwaitNumber(5);
}

TEST_F(HostTest, MemoryAndDescriptorsComeBackWhenEnginesAndVersionsGo) {
  StartDaemon(/*keep=*/1);
  cache_->Publish(1);
  { const Engine warm = Attached(); }
  ASSERT_TRUE(Eventually([this] { return daemon_->status().engines.empty(); }, Soon()));
  const std::size_t mappings = MappingsOf("bascule_weights");

  for (std::uint64_t number = 2; number < 8; ++number) {
    const Engine engine = Attached();
    cache_->Publish(number);
    engine.replica->AwaitNumber(number);
  }

  EXPECT_TRUE(Eventually([this] { return daemon_->status().engines.empty(); }, Soon()));
  EXPECT_LE(MappingsOf("bascule_weights"), mappings + 2) << "the live version, and the one kept as the way back";
  EXPECT_EQ(daemon_->status().objects.size(), 1u);
}

}  // namespace
}  // namespace bascule
