// Sums over devices by NCCL, as tensor-parallel decode needs them.
#include "device/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

constexpr std::int64_t kCount = 5'000;
constexpr int kRanks = 3;

class CollectiveTest : public testing::Test {
 protected:
  CollectiveTest() {
    for (int r = 0; r < kRanks; ++r) {
      ranks_.push_back(MakeRank(r, kCount * sizeof(float)));
      devices_.push_back(ranks_.back().device);
      parts_.push_back({reinterpret_cast<float*>(ranks_.back().memory->bytes().data()), ranks_.back().stream.get()});
    }
  }
  Status Make() {
    ASSIGN_OR_RETURN(collective_, Library().MakeCollective(devices_, Soon(), Clock::Real()));
    return OkStatus();
  }
  // Small whole numbers, whose sum is exact in whatever order they are added.
  static float ValueOf(int rank, std::int64_t i, int round) {
    return static_cast<float>((i * (rank + 3) + 17 * round) % 1000);
  }
  void Write(int round) {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> values(kCount);
      for (std::int64_t i = 0; i < kCount; ++i) values[static_cast<std::size_t>(i)] = ValueOf(r, i, round);
      const Rank& rank = ranks_[static_cast<std::size_t>(r)];
      ASSERT_TRUE(WriteDevice(*rank.device, rank.memory->bytes(), std::as_bytes(std::span(values))).ok());
    }
  }
  // How many floats of all ranks are not what they must be, when the first `summed` of each have been summed.
  int CountWrong(int round, std::int64_t summed) {
    int wrong = 0;
    for (int r = 0; r < kRanks; ++r) {
      const std::vector<std::byte> bytes = ranks_[static_cast<std::size_t>(r)].Read();
      for (std::int64_t i = 0; i < kCount; ++i) {
        float expected = 0;
        for (int other = 0; other < kRanks; ++other) {
          if (i < summed || other == r) expected += ValueOf(other, i, round);
        }
        float value = 0;
        std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
        wrong += value == expected ? 0 : 1;
      }
    }
    return wrong;
  }
  testing::AssertionResult Drained() {
    for (const Rank& rank : ranks_) {
      if (const Status status = rank.Drain(); !status.ok()) return testing::AssertionFailure() << status.ToString();
    }
    return testing::AssertionSuccess();
  }

  std::vector<Rank> ranks_;
  std::vector<Device*> devices_;
  std::vector<CollectivePart> parts_;
  std::unique_ptr<DeviceCollective> collective_;
};

TEST_F(CollectiveTest, TheFirstFloatsOfEveryRankBecomeTheirSumInStreamOrder) {
  ASSERT_TRUE(Make().ok());
  EXPECT_EQ(collective_->name(), "nccl");
  for (int round = 1; round <= 5; ++round) {
    SCOPED_TRACE(round);
    FakeCuda::SetSeed(static_cast<std::uint64_t>(round));
    FakeNccl::SetSeed(static_cast<std::uint64_t>(round));
    Write(round);

    ASSERT_TRUE(collective_->AllReduceSum(parts_, kCount - 100).ok());

    ASSERT_TRUE(Drained());
    EXPECT_EQ(CountWrong(round, kCount - 100), 0);
  }
}

// Every rank's stream joins the capture of the first one and is waited for at its end.
Result<std::unique_ptr<DeviceGraph>> CaptureSum(std::span<const Rank> ranks, DeviceCollective& collective,
                                                std::span<const CollectivePart> parts, DeviceEvent& fork,
                                                std::span<const std::unique_ptr<DeviceEvent>> joins) {
  DeviceStream& origin = *ranks[0].stream;
  RETURN_IF_ERROR(origin.BeginCapture());
  RETURN_IF_ERROR(origin.Record(fork));
  for (const Rank& rank : ranks.subspan(1)) RETURN_IF_ERROR(rank.stream->WaitFor(fork));
  const Status summed = collective.AllReduceSum(parts, kCount);
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    RETURN_IF_ERROR(ranks[r].stream->Record(*joins[r]));
    RETURN_IF_ERROR(origin.WaitFor(*joins[r]));
  }
  Result<std::unique_ptr<DeviceGraph>> graph = origin.EndCapture();
  RETURN_IF_ERROR(summed);
  return graph;
}

TEST_F(CollectiveTest, ACapturedSumIsLaunchedAgainAndAgainWithWhatLiesThereThen) {
  ASSERT_TRUE(Make().ok());
  const auto fork = devices_[0]->MakeEvent().value();
  std::vector<std::unique_ptr<DeviceEvent>> joins;
  for (Device* const device : devices_) joins.push_back(device->MakeEvent().value());
  const Result<std::unique_ptr<DeviceGraph>> graph = CaptureSum(ranks_, *collective_, parts_, *fork, joins);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  for (int round = 1; round <= 4; ++round) {
    SCOPED_TRACE(round);
    FakeCuda::SetSeed(static_cast<std::uint64_t>(round));
    Write(round);

    ASSERT_TRUE(ranks_[0].stream->Launch(**graph).ok());

    ASSERT_TRUE(Drained());
    EXPECT_EQ(CountWrong(round, kCount), 0);
  }
}

TEST_F(CollectiveTest, TwoRanksOnOneDeviceAreRefusedByName) {
  devices_[2] = devices_[0];

  const Status status = Make();

  EXPECT_EQ(status.reason(), "same_device");
  EXPECT_THAT(status.message(), testing::HasSubstr("ranks 0 and 2 are on GPU-"));
}

TEST_F(CollectiveTest, ARankThatDoesNotJoinIsWaitedForUntilTheDeadline) {
  const FakeNcclCensus before = (Library(), FakeNccl::Census());
  FakeNccl::Fail("ncclCommInitRankConfig", 2, FakeNccl::kLost);

  EXPECT_EQ(Library().MakeCollective(devices_, Shortly(), Clock::Real()).status().reason(), "nccl_deadline");

  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators);
  EXPECT_TRUE(Make().ok());
}

TEST_F(CollectiveTest, ASumThatFailsSaysSoAndEnqueuesNothing) {
  for (const char* const call : {"ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"}) {
    SCOPED_TRACE(call);
    ASSERT_TRUE(Make().ok());
    FakeNccl::Fail(call, 1, ncclInternalError);

    const Status status = collective_->AllReduceSum(parts_, kCount);

    EXPECT_EQ(status.reason(), "nccl_error");
    EXPECT_THAT(status.message(), testing::HasSubstr(call));
    EXPECT_TRUE(Drained());
  }
}

TEST_F(CollectiveTest, ASumThatStandsEndsWithTheCollectiveAndTheStreamsGoOn) {
  const FakeNcclCensus before = (Library(), FakeNccl::Census());
  ASSERT_TRUE(Make().ok());
  FakeNccl::Fail("ncclAllReduce", 3, FakeNccl::kLost);
  ASSERT_TRUE(collective_->AllReduceSum(parts_, kCount).ok());
  const auto behind = devices_[0]->MakeEvent().value();
  ASSERT_TRUE(ranks_[0].stream->Record(*behind).ok());
  EXPECT_EQ(AwaitEvent(*behind, Shortly(), Clock::Real()).reason(), "device_deadline");

  collective_.reset();

  EXPECT_TRUE(Drained());
  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators);
}

}  // namespace
}  // namespace bascule
