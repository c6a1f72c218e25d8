// Whole syncs into slots in device memory, from a trainer's values to what an engine's kernels would read.
#include <cuda_runtime_api.h>

#include <set>

#include "bridge/layout/layout.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/peer_sender.h"
#include "tests/support/device_work/device_work.h"
#include "tests/unit/device_slots/device_engine.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

struct Setting {
  TransportKind transport;
  FlipMode flip;
};

class DeviceSyncTest : public DeviceEngineTest, public testing::WithParamInterface<Setting> {};

TEST_P(DeviceSyncTest, EveryRankHoldsTheTrainersValuesInWhateverOrderStreamsRunAndGoesBack) {
  Start(GetParam().flip, GetParam().transport);
  EngineContents before;
  for (std::uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    FakeCuda::SetSeed(seed);
    if (seed > 1) before = Live();
    PublishWell(seed);
  }

  const EngineContents newest = Live();
  ASSERT_TRUE(RollBack().ok());
  EXPECT_EQ(Live(), before);
  EXPECT_EQ(receiver_->status().live->number, 2U);
  ASSERT_TRUE(RollBack().ok());
  EXPECT_EQ(Live(), newest);
  EXPECT_TRUE(receiver_->DigestLive().ok());
}

// C-017.
TEST_P(DeviceSyncTest, WhatAScopeLeavesOutIsCopiedFromSlotToSlotOnTheDevice) {
  Start(GetParam().flip, GetParam().transport);
  PublishWell(1);
  const EngineContents before = Live();
  FakeCuda::SetSeed(2);

  const ReplicaReport report = Publish(2, {.scope = {"layer.*", "norm"}});

  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  const EngineContents sent = Expected();
  EngineContents expected = before;
  for (std::size_t rank = 0; rank < kEngineRanks; ++rank) {
    for (const std::size_t in_scope : {1, 2, 3}) expected[rank][in_scope] = sent[rank][in_scope];
  }
  EXPECT_EQ(Live(), expected);
  EXPECT_TRUE(receiver_->DigestLive().ok());
  ASSERT_TRUE(RollBack().ok());
  EXPECT_EQ(Live(), before);
}

INSTANTIATE_TEST_SUITE_P(Routes, DeviceSyncTest,
                         testing::Values(Setting{TransportKind::kLoopback, FlipMode::kShadow},
                                         Setting{TransportKind::kLoopback, FlipMode::kInPlace},
                                         Setting{TransportKind::kShm, FlipMode::kShadow},
                                         Setting{TransportKind::kShm, FlipMode::kInPlace},
                                         Setting{TransportKind::kCudaIpc, FlipMode::kShadow},
                                         Setting{TransportKind::kCudaIpc, FlipMode::kInPlace}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return std::string(TransportName(setting.param.transport)) +
                                  (setting.param.flip == FlipMode::kShadow ? "_shadow" : "_in_place");
                         });

class DeviceSlotsTest : public DeviceEngineTest {
 protected:
  // What the proof says of live memory once byte `at` of a tensor has another bit.
  std::string FoundWhenAltered(int rank, int tensor, std::size_t at) {
    const WeightLease lease = receiver_->AcquireLive();
    const std::span<const std::byte> bytes = lease.Tensor(rank, tensor);
    const std::span<std::byte> altered(const_cast<std::byte*>(bytes.data()) + at, 1);
    const std::byte was = ReadDevice(FakeDevice(), altered).value()[0];
    const std::byte other = was ^ std::byte{16};
    EXPECT_TRUE(WriteDevice(FakeDevice(), altered, std::span(&other, 1)).ok());
    const auto digest = receiver_->DigestLive();
    EXPECT_TRUE(WriteDevice(FakeDevice(), altered, std::span(&was, 1)).ok());
    if (!digest.ok()) return digest.status().ToString();
    std::string found;
    for (std::size_t t = 0; t < digest->totals.size(); ++t) {
      if (digest->totals[t] != lease.held().totals[t]) found += receiver_->layout().tensors[t].name + " ";
    }
    for (const auto& difference : digest->replica_differences) found += difference.what;
    return found;
  }
};

TEST_F(DeviceSlotsTest, LiveMemoryThatHasChangedIsFoundWhenItIsCarriedOver) {
  Start(FlipMode::kShadow, TransportKind::kLoopback);
  PublishWell(1);
  {
    const WeightLease lease = receiver_->AcquireLive();
    const std::span<const std::byte> bytes = lease.Tensor(/*engine_rank=*/1, /*tensor=*/5);
    const std::span<std::byte> altered(const_cast<std::byte*>(bytes.data()) + 7, 1);
    const std::byte other = ReadDevice(FakeDevice(), altered).value()[0] ^ std::byte{16};
    ASSERT_TRUE(WriteDevice(FakeDevice(), altered, std::span(&other, 1)).ok());
  }

  const ReplicaReport report = Publish(2, {.scope = {"norm"}});

  EXPECT_EQ(report.status.reason(), "digest_mismatch") << report.status.ToString();
  EXPECT_THAT(report.status.message(), HasSubstr("up.weight"));
  EXPECT_EQ(receiver_->status().live->number, 1U);
}

TEST_F(DeviceSlotsTest, AShadowFlipGoesToTheOtherSlotAndAFlipInPlaceKeepsEveryAddress) {
  const auto addresses = [&] {
    const WeightLease lease = receiver_->AcquireLive();
    return std::pair(lease.Tensor(1, 2).data(), lease.slot());
  };
  for (const FlipMode flip : {FlipMode::kShadow, FlipMode::kInPlace}) {
    Start(flip, TransportKind::kLoopback);
    PublishWell(1);
    const auto first = addresses();
    PublishWell(2);

    EXPECT_EQ(addresses() == first, flip == FlipMode::kInPlace);
    PublishWell(3);
    EXPECT_EQ(addresses(), first);
  }
}

TEST_F(DeviceSlotsTest, ThreeSlotsKeepTheWayBackWhileTheNextVersionIsStaged) {
  WeightReceiverOptions options{.slot_count = 3};
  options.devices = {&FakeDevice(), &FakeDevice()};
  Start(std::move(options), TransportKind::kLoopback);
  for (std::uint32_t seed = 1; seed <= 4; ++seed) PublishWell(seed);
  ASSERT_TRUE(RollBack().ok());

  EXPECT_EQ(receiver_->status().live->number, 3U);
}

TEST_F(DeviceSlotsTest, RanksMayLieOnDevicesOfTheirOwn) {
  for (const FlipMode flip : {FlipMode::kShadow, FlipMode::kInPlace}) {
    WeightReceiverOptions options{.flip = flip};
    options.devices = {&FakeDevice(1), &FakeDevice(0)};
    Start(std::move(options), TransportKind::kLoopback);
    for (std::uint32_t seed = 1; seed <= 3; ++seed) PublishWell(seed);
  }
}

TEST_F(DeviceSlotsTest, AnEngineOnOneDeviceSetsUpNoOther) {
  Device& second = FakeDevice(1);
  for (const FlipMode flip : {FlipMode::kShadow, FlipMode::kInPlace}) {
    FakeCuda::ForgetSetUp();
    Start(flip, TransportKind::kLoopback, second);
    for (std::uint32_t seed = 1; seed <= 2; ++seed) {
      const Status published = Publish(seed).status;
      EXPECT_TRUE(published.ok()) << published.ToString();
    }
    EXPECT_TRUE(receiver_->DigestLive().ok());
    Stop();
    EXPECT_EQ(FakeCuda::Census().set_up, 1);
  }
}

TEST_F(DeviceSlotsTest, OneBitThatChangesInDeviceMemoryIsFoundAndNamed) {
  Start(FlipMode::kShadow, TransportKind::kLoopback);
  PublishWell(1);

  EXPECT_EQ(FoundWhenAltered(0, 0, 7), "embed ");
  EXPECT_EQ(FoundWhenAltered(1, 2, 101), "layer.weight ");
  EXPECT_THAT(FoundWhenAltered(1, 3, 4), HasSubstr("engine rank 1 holds other bytes than ranks 0"));
  EXPECT_TRUE(receiver_->DigestLive().ok());
}

TEST_F(DeviceSlotsTest, AProvenByteThatChangesBeforeAFlipInPlaceIsFoundBeforeTheNextStepAndTheFlipUndone) {
  WatchedEngine engine;
  hooks_ = &engine;
  std::span<std::byte> staged;
  engine.finalize = [&](const StagedWeights& weights) {
    const std::span<const std::byte> tensor = weights.tensor(1, 2);
    staged = {const_cast<std::byte*>(tensor.data()), tensor.size()};
    return OkStatus();
  };
  Start(FlipMode::kInPlace, TransportKind::kLoopback);
  PublishWell(1);
  const EngineContents live = Live();
  engine.before_flip = [&] {
    const std::byte other = ReadDevice(FakeDevice(), staged.subspan(9, 1)).value()[0] ^ std::byte{1};
    EXPECT_TRUE(WriteDevice(FakeDevice(), staged.subspan(9, 1), std::span(&other, 1)).ok());
  };

  const Status refused = Publish(2).status;

  EXPECT_EQ(refused.reason(), "flip_undone");
  EXPECT_THAT(refused.message(), HasSubstr("layer.weight"));
  EXPECT_EQ(Live(), live);
  engine.before_flip = [] {};
  PublishWell(3);
}

TEST_F(DeviceSlotsTest, AFrameInDeviceMemoryThatIsDamagedIsAskedForAgainOnce) {
  Start(FlipMode::kShadow, TransportKind::kCudaIpc);
  PublishWell(1);
  frames_to_spoil_ = 1;
  PublishWell(2);

  frames_to_spoil_ = 1'000'000;
  EXPECT_EQ(Publish(3).status.reason(), "bucket_damaged");

  frames_to_spoil_ = 0;
  EXPECT_EQ(receiver_->status().live->number, 2U);
  PublishWell(4);
}

TEST_F(DeviceSlotsTest, WhatAnEngineDerivesIsMadeOnItsDeviceAndProven) {
  WatchedEngine doubling;
  doubling.finalize = [](const StagedWeights& staged) -> Status {
    for (int rank = 0; rank < kEngineRanks; ++rank) {
      ASSIGN_OR_RETURN(const std::vector<std::byte> norm, ReadDevice(FakeDevice(), staged.tensor(rank, 3)));
      const std::span<std::byte> derived = staged.derived(rank, 0);
      RETURN_IF_ERROR(WriteDevice(FakeDevice(), derived.first(norm.size()), norm));
      RETURN_IF_ERROR(WriteDevice(FakeDevice(), derived.subspan(norm.size()), norm));
    }
    return OkStatus();
  };
  hooks_ = &doubling;
  WeightReceiverOptions options{.flip = FlipMode::kInPlace};
  options.devices = {&FakeDevice(), &FakeDevice()};
  options.derived = {{{"twice", DType::kF32, {100}, {}}}, {{"twice", DType::kF32, {100}, {}}}};
  Start(std::move(options), TransportKind::kLoopback);

  for (std::uint32_t seed = 1; seed <= 2; ++seed) {
    PublishWell(seed);
    const WeightLease lease = receiver_->AcquireLive();
    std::vector<std::byte> twice = Expected()[1][3];
    twice.insert(twice.end(), twice.begin(), twice.end());
    EXPECT_EQ(ReadDevice(FakeDevice(), lease.Tensor(1, 6)).value(), twice);
  }

  EXPECT_THAT(FoundWhenAltered(0, 6, 5), HasSubstr("derived tensor twice on engine rank 0"));
}

TEST_F(DeviceSlotsTest, AVersionOnDevicesIsSentOnToAnEngineThatHasNone) {
  WeightReceiverOptions options;
  options.devices = {&FakeDevice(1), &FakeDevice(0)};
  Start(std::move(options), TransportKind::kLoopback);
  PublishWell(1);
  const auto routes = *LoopbackListener::Create(network_, "peer");
  WeightReceiverOptions on_host{.layout = PaddedLayout(trainer_.Rows())};
  on_host.listeners = {routes.get()};
  const auto peer = *WeightReceiver::Create(std::move(on_host), idle_);
  const auto calls = *control_.Listen("peer", [&](ControlChannel& channel) { (void)peer->Serve(channel); });
  ConnectionOptions connection{.address = "peer", .control = &control_};
  connection.transports = {dialer_.get()};

  const SendReport report = SendLive(*receiver_, {}, std::move(connection), Soon(), StopSignal());

  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(peer->status().live, receiver_->status().live);
  const EngineContents expected = Expected();
  const WeightLease lease = peer->AcquireLive();
  for (int rank = 0; rank < kEngineRanks; ++rank) {
    for (int tensor = 0; tensor < std::ssize(expected[0]); ++tensor) {
      EXPECT_TRUE(std::ranges::equal(lease.Tensor(rank, tensor),
                                     expected[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)]))
          << rank << " " << tensor;
    }
  }
}

TEST_F(DeviceSlotsTest, OptionsThatContradictTheDevicesAreRefused) {
  WeightReceiverOptions options{.layout = PaddedLayout(24)};
  options.devices = {&FakeDevice()};
  EXPECT_EQ(WeightReceiver::Create(options, idle_).status().reason(), "bad_options");
  options.devices = {&FakeDevice(), &FakeDevice()};
  options.copier = &HostBlockCopier();
  EXPECT_EQ(WeightReceiver::Create(options, idle_).status().reason(), "bad_options");
}

}  // namespace
}  // namespace bascule
