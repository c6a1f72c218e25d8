// What a cache daemon lends, which is memory of the host, in slots on a device: a copy that is proven like anything
// that is received.
#include <cuda_runtime_api.h>

#include "bridge/transport/loopback/listener.h"
#include "engine_side/weight_slots.h"
#include "tests/unit/device_slots/device_engine.h"

namespace bascule {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class LentBuffer final : public DeviceBuffer {
 public:
  LentBuffer(std::vector<std::byte> content, int* lent) : content_(std::move(content)), lent_(lent) { ++*lent_; }
  ~LentBuffer() override { --*lent_; }
  std::span<std::byte> bytes() override { return content_; }
  std::span<const std::byte> bytes() const override { return content_; }
  bool writable() const override { return false; }

 private:
  std::vector<std::byte> content_;
  int* const lent_;
};

class LentVersionTest : public DeviceEngineTest, public testing::WithParamInterface<FlipMode> {
 protected:
  void StartOnDevices() {
    WeightReceiverOptions options{.flip = GetParam()};
    options.devices = {&FakeDevice(1), &FakeDevice(0)};
    Start(std::move(options), TransportKind::kLoopback);
  }
  // The trainer's values of `seed` as version `number`, as a receiver in host memory has proven and lends it.
  LentVersion Lent(std::uint32_t seed, std::uint64_t number) {
    Start(WeightReceiverOptions{}, TransportKind::kLoopback);
    trainer_.Fill(seed);
    const auto handle = publisher_->Publish({.number = number});
    EXPECT_TRUE((*handle)->WaitCommitted(Soon()).ok());
    const WeightLease lease = receiver_->AcquireLive();
    LentVersion lent{.version = lease.version(), .digests = lease.held().totals, .memory = {}};
    const Layout& layout = receiver_->layout();
    for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
      const std::vector<std::int64_t> offsets = WeightSlots::TensorOffsets(layout.ranks[r]);
      std::vector<std::byte> content(static_cast<std::size_t>(offsets.back()));
      for (std::size_t t = 0; t < layout.ranks[r].tensors.size(); ++t) {
        std::ranges::copy(lease.Tensor(static_cast<int>(r), static_cast<int>(t)), content.begin() + offsets[t]);
      }
      lent.memory.ranks.push_back(std::make_unique<LentBuffer>(std::move(content), &lent_count_));
    }
    return lent;
  }
  Status Adopt(LentVersion lent) { return receiver_->Adopt(std::move(lent), Soon()).status(); }

  int lent_count_ = 0;
};

TEST_P(LentVersionTest, IsCopiedProvenAndLetGoAndIsAVersionLikeAnyOther) {
  LentVersion first = Lent(1, 1), second = Lent(2, 2);
  const WeightVersion version = second.version;
  StartOnDevices();
  ASSERT_TRUE(Adopt(std::move(first)).ok());
  const EngineContents before = Live();

  const Status adopted = Adopt(std::move(second));

  ASSERT_TRUE(adopted.ok()) << adopted.ToString();
  EXPECT_EQ(receiver_->status().live, version);
  EXPECT_EQ(Live(), Expected());
  EXPECT_EQ(lent_count_, 0);
  EXPECT_TRUE(receiver_->DigestLive().ok());
  ASSERT_TRUE(RollBack().ok());
  EXPECT_EQ(Live(), before);
  PublishWell(3);
}

TEST_P(LentVersionTest, WithOneBitThatDiffersNeverGoesLiveAlsoWhereTheDaemonIsBelieved) {
  for (const bool check : {true, false}) {
    LentVersion lent = Lent(2, 2);
    lent.memory.check = check;
    lent.memory.ranks[1]->bytes()[100] ^= std::byte{1};
    StartOnDevices();
    PublishWell(1);
    const EngineContents live = Live();

    const Status refused = Adopt(std::move(lent));

    EXPECT_EQ(refused.reason(), "digest_mismatch") << refused.ToString();
    EXPECT_EQ(Live(), live);
    EXPECT_EQ(lent_count_, 0);
    PublishWell(3);
  }
}

TEST_P(LentVersionTest, IsGivenUpWhenItsDeviceFailsAndTheLiveVersionStays) {
  constexpr int kFirst = 1, kLater = 9, kLast = 25;
  for (const int call : {kFirst, kLater, kLast}) {
    SCOPED_TRACE(call);
    LentVersion lent = Lent(2, 2);
    StartOnDevices();
    PublishWell(1);
    const EngineContents live = Live();
    FakeCuda::Fail("cudaMemcpyAsync", call, cudaErrorMemoryAllocation);

    const Status failed = Adopt(std::move(lent));

    if (FakeCuda::TakeBackFaults() == 1) {  // copies of fewer buckets
      EXPECT_TRUE(failed.ok()) << failed.ToString();
      continue;
    }
    EXPECT_THAT(failed.reason(), AnyOf("device_memory", "flip_undone")) << failed.ToString();
    EXPECT_THAT(failed.message(), HasSubstr("fakeError"));
    EXPECT_EQ(Live(), live);
    EXPECT_EQ(lent_count_, 0);
    PublishWell(3);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, LentVersionTest, testing::Values(FlipMode::kShadow, FlipMode::kInPlace),
                         [](const testing::TestParamInfo<FlipMode>& mode) {
                           return mode.param == FlipMode::kShadow ? "shadow" : "in_place";
                         });

}  // namespace
}  // namespace bascule
