// Changes of live weights are proven before they are scattered: the digest of a box with its changes is worked out from
// what lies there before them. A scatter on another stream that does not wait for that is found.
#include <random>

#include "kernels/device_kernels.h"
#include "tests/support/device_work/device_work.h"
#include "tests/unit/device_slots/device_engine.h"

namespace bascule {
namespace {

constexpr std::int64_t kElements = 64'000;
constexpr std::int64_t kChanges = 4'000;
constexpr DigestKey kKey{{3, 5, 7, 11}};

class ScatterOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(1);
    live_.resize(2 * kElements);
    for (std::byte& byte : live_) byte = static_cast<std::byte>(random());
    changed_ = live_;
    std::vector<std::uint32_t> positions;
    std::vector<std::byte> items;
    for (std::int64_t c = 0; c < kChanges; ++c) {
      const std::int64_t at = c * (kElements / kChanges);
      positions.push_back(static_cast<std::uint32_t>(at));
      for (const std::int64_t byte : {2 * at, 2 * at + 1}) {
        changed_[static_cast<std::size_t>(byte)] ^= std::byte{0x55};
        items.push_back(changed_[static_cast<std::size_t>(byte)]);
      }
    }
    BoxMoveTable table;
    const BoxPlace line{0, {1}};
    ASSERT_TRUE(table
                    .Add({.shape = {1, {kElements}},
                          .item_bytes = 2,
                          .source = line,
                          .target = line,
                          .logical = line,
                          .key = kKey})
                    .ok());
    constexpr std::array<std::int64_t, 2> kFirstChange = {0, kChanges};
    constexpr std::array<std::int64_t, 1> kFirstItem = {0};
    batch_ = {.entries = reinterpret_cast<const MoveEntry*>(Put(std::as_bytes(table.entries()))),
              .entry_count = 1,
              .first_change = reinterpret_cast<const std::int64_t*>(Put(std::as_bytes(std::span(kFirstChange)))),
              .first_item = reinterpret_cast<const std::int64_t*>(Put(std::as_bytes(std::span(kFirstItem)))),
              .positions = reinterpret_cast<const std::uint32_t*>(Put(std::as_bytes(std::span(positions)))),
              .items = Put(items),
              .replaced = Put(std::vector<std::byte>(items.size())),
              .changes = kChanges,
              .target_base = reinterpret_cast<std::uint64_t>(Put(live_)),
              .digests = reinterpret_cast<TensorDigest*>(Put(std::vector<std::byte>(sizeof(TensorDigest))))};
  }
  std::byte* Put(std::span<const std::byte> bytes) {
    memory_.push_back(FakeDevice().memory().Allocate(bytes.size()).value());
    EXPECT_TRUE(WriteDevice(FakeDevice(), memory_.back()->bytes(), bytes).ok());
    return memory_.back()->bytes().data();
  }
  std::span<std::byte> Live() const { return {reinterpret_cast<std::byte*>(batch_.target_base), live_.size()}; }

  // Whether the proof, by work on one stream, agrees with what a scatter on another makes of live memory.
  bool ProvenBeforeScattered(bool waits) {
    std::vector<std::byte> zero(sizeof(TensorDigest));
    EXPECT_TRUE(WriteDevice(FakeDevice(), {reinterpret_cast<std::byte*>(batch_.digests), zero.size()}, zero).ok());
    EXPECT_TRUE(WriteDevice(FakeDevice(), Live(), live_).ok());
    const auto proving = FakeDevice().MakeStream(StreamPriority::kLow).value();
    const auto flipping = FakeDevice().MakeStream(StreamPriority::kHigh).value();
    const auto proven = FakeDevice().MakeEvent().value();
    EXPECT_TRUE(kernels_.digest_changes(batch_, proving->handle()).ok());
    EXPECT_TRUE(proving->Record(*proven).ok());
    const Status waited = waits ? flipping->WaitFor(*proven) : OkStatus();
    EXPECT_TRUE(waited.ok());
    EXPECT_TRUE(kernels_.scatter(batch_, flipping->handle()).ok());
    EXPECT_TRUE(Drain(FakeDevice(), *proving).ok());
    EXPECT_TRUE(Drain(FakeDevice(), *flipping).ok());

    EXPECT_EQ(ReadDevice(FakeDevice(), Live()).value(), changed_);
    TensorDigest difference;
    const std::vector<std::byte> read =
        ReadDevice(FakeDevice(), {reinterpret_cast<std::byte*>(batch_.digests), sizeof difference}).value();
    std::memcpy(&difference, read.data(), sizeof difference);
    return DigestRunOnHost(kKey, 0, live_) + difference == DigestRunOnHost(kKey, 0, changed_);
  }

  const DeviceKernels& kernels_ = (static_cast<void>(FakeDevice()), *LoadDeviceKernels().value());
  std::vector<std::byte> live_, changed_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
  ChangeBatch batch_;
};

TEST_F(ScatterOrderTest, AScatterThatWaitsForTheProofLeavesItRightInEveryOrder) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    FakeCuda::SetSeed(seed);
    EXPECT_TRUE(ProvenBeforeScattered(/*waits=*/true)) << seed;
  }
}

TEST_F(ScatterOrderTest, AScatterBeforeTheProofIsCompleteIsFound) {
  bool found = false;
  for (std::uint64_t seed = 1; seed <= 40 && !found; ++seed) {
    FakeCuda::SetSeed(seed);
    found = !ProvenBeforeScattered(/*waits=*/false);
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace bascule
