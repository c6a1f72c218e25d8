// Communicators side by side on one device: kernels of NCCL take its multiprocessors while they wait for peers, and
// Bascule's have a budget of those.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdlib>
#include <functional>

#include "tests/support/fake_nccl/control.h"
#include "tests/support/fake_nccl/fill_device.h"
#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

constexpr int kOthersCtas = 32;  // of a communicator that nobody tells how many it may have
constexpr int kMultiprocessors = 132;
constexpr int kBudget = kMultiprocessors * 3 / 4;
constexpr std::size_t kBytes = 5'000;

testing::AssertionResult Comes(const std::function<bool()>& what) {
  for (const Deadline deadline = Soon(); !what();) {
    if (deadline.Passed(Clock::Real())) return testing::AssertionFailure() << "it did not come";
    Clock::Real().SleepUntil(Clock::Real().Now() + std::chrono::microseconds(50), {});
  }
  return testing::AssertionSuccess();
}

template <typename Function>
Function* FindIn(const char* library, const char* name) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  CHECK(opened != nullptr);
  void* const found = dlsym(opened, name);
  dlclose(opened);
  CHECK(found != nullptr);
  return reinterpret_cast<Function*>(found);
}

// One rank of a communicator as others in the process make them, of whom no budget knows.
class OthersRank {
 public:
  OthersRank(const ncclUniqueId& id, int rank) : rank_(MakeRank(rank, kBytes)), peer_(1 - rank) {
    CHECK(FindIn<decltype(cudaSetDevice)>("libcudart.so.13", "cudaSetDevice")(rank) == cudaSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto join = Find<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig");
    CHECK(join(&communicator_, 2, id, rank, &config) == ncclInProgress);
  }
  OthersRank(OthersRank&& other) noexcept
      : rank_(std::move(other.rank_)), peer_(other.peer_), communicator_(std::exchange(other.communicator_, nullptr)) {}
  OthersRank& operator=(OthersRank&&) = delete;
  ~OthersRank() { Abort(); }

  bool Settled() const {
    ncclResult_t state = ncclSuccess;
    CHECK(Find<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError")(communicator_, &state) == ncclSuccess);
    return state == ncclSuccess;
  }
  // Rank 0 sends all of its memory to rank 1.
  testing::AssertionResult Move() {
    auto* const stream = static_cast<cudaStream_t>(rank_.stream->handle().native);
    if (peer_ == 1) {
      const auto send = Find<decltype(ncclSend)>("ncclSend");
      send(rank_.memory->bytes().data(), kBytes, ncclUint8, peer_, communicator_, stream);
    } else {
      const auto receive = Find<decltype(ncclRecv)>("ncclRecv");
      receive(rank_.memory->bytes().data(), kBytes, ncclUint8, peer_, communicator_, stream);
    }
    return Comes([&] { return Settled(); });
  }
  void Abort() {
    if (communicator_ == nullptr) return;
    Find<decltype(ncclCommAbort)>("ncclCommAbort")(std::exchange(communicator_, nullptr));
  }
  const Rank& rank() const { return rank_; }

 private:
  template <typename Function>
  static Function* Find(const char* name) {
    return FindIn<Function>("libnccl.so.2", name);
  }

  Rank rank_;
  int peer_;
  ncclComm_t communicator_ = nullptr;
};

struct OthersPair {
  OthersRank sender;
  OthersRank receiver;
};

std::vector<OthersPair> OthersPairs(std::size_t count) {
  (void)Library();
  std::vector<OthersPair> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    ncclUniqueId id{};
    CHECK(FindIn<decltype(ncclGetUniqueId)>("libnccl.so.2", "ncclGetUniqueId")(&id) == ncclSuccess);
    pairs.push_back({OthersRank(id, 0), OthersRank(id, 1)});
  }
  for (const OthersPair& pair : pairs) {
    CHECK(Comes([&] { return pair.sender.Settled() && pair.receiver.Settled(); }));
  }
  return pairs;
}

// Kernels of others that have been launched and have not ended.
int CountLaunched() {
  const FakeNcclCensus now = FakeNccl::Census();
  return now.ctas / kOthersCtas + now.waiting;
}

// On their device each comes behind those before it. None has a peer yet.
testing::AssertionResult LaunchInTurn(const std::vector<OthersRank*>& ranks) {
  for (OthersRank* const rank : ranks) {
    const int before = CountLaunched();
    if (const auto moving = rank->Move(); !moving) return moving;
    if (const auto launched = Comes([&] { return CountLaunched() == before + 1; }); !launched) return launched;
  }
  return testing::AssertionSuccess();
}

std::vector<OthersRank*> SendersOf(std::vector<OthersPair>& pairs) {
  std::vector<OthersRank*> senders;
  for (OthersPair& pair : pairs) senders.push_back(&pair.sender);
  return senders;
}
std::vector<OthersRank*> ReceiversOfLastFirst(std::vector<OthersPair>& pairs) {
  std::vector<OthersRank*> receivers;
  for (OthersPair& pair : pairs) receivers.insert(receivers.begin(), &pair.receiver);
  return receivers;
}

Status DoneBy(const Rank& rank, Deadline deadline) {
  const std::unique_ptr<DeviceEvent> event = rank.device->MakeEvent().value();
  RETURN_IF_ERROR(rank.stream->Record(*event));
  return AwaitEvent(*event, deadline, Clock::Real());
}

// The deadlock that the budget is there against shows on the fake.
TEST(CoResidenceTest, KernelsThatFillTwoDevicesInDifferentOrdersStandUntilOneIsAborted) {
  std::vector<OthersPair> pairs = OthersPairs(8);

  ASSERT_TRUE(LaunchInTurn(SendersOf(pairs)));
  ASSERT_TRUE(LaunchInTurn(ReceiversOfLastFirst(pairs)));

  EXPECT_EQ(FakeNccl::Census().ctas, 2 * 4 * kOthersCtas);
  EXPECT_EQ(FakeNccl::Census().waiting, 2 * 4);
  for (const OthersPair& pair : pairs) {
    EXPECT_EQ(DoneBy(pair.sender.rank(), Shortly()).reason(), "device_deadline");
    EXPECT_EQ(DoneBy(pair.receiver.rank(), Shortly()).reason(), "device_deadline");
  }
  pairs[0].sender.Abort();
  pairs[0].receiver.Abort();
  for (const OthersPair& pair : pairs) {
    EXPECT_TRUE(pair.sender.rank().Drain().ok());
    EXPECT_TRUE(pair.receiver.rank().Drain().ok());
  }
  EXPECT_EQ(FakeNccl::Census().ctas, 0);
}

TEST(CoResidenceTest, TheSameKernelsInOneOrderGetThrough) {
  std::vector<OthersPair> pairs = OthersPairs(8);

  ASSERT_TRUE(LaunchInTurn(SendersOf(pairs)));
  for (OthersPair& pair : pairs) ASSERT_TRUE(pair.receiver.Move());

  for (const OthersPair& pair : pairs) {
    EXPECT_TRUE(pair.sender.rank().Drain().ok());
    EXPECT_TRUE(pair.receiver.rank().Drain().ok());
  }
  EXPECT_EQ(FakeNccl::Census().ctas, 0);
}

int CountThatFit(int ordinal) { return static_cast<int>(FillDevice(FakeDevice(ordinal), Library()).size()); }

TEST(CoResidenceTest, ADeviceTakesAsManyCommunicatorsAsItsBudgetHoldsAndTheNextIsRefusedByName) {
  Status refused;

  auto made = FillDevice(FakeDevice(0), Library(), &refused);

  EXPECT_EQ(made.size(), kBudget / kMoveCtas);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.reason(), "nccl_too_many");
  EXPECT_THAT(refused.message(), testing::HasSubstr("49 communicators have 98 of 99 CTAs, and one more needs 2"));
  EXPECT_EQ(CountThatFit(1), kBudget / kMoveCtas) << "each device has its own";
  ASSERT_TRUE(made[3]->Abort(Soon(), Clock::Real()).ok());
  EXPECT_EQ(CountThatFit(0), 1);
  made.clear();
  EXPECT_EQ(CountThatFit(0), kBudget / kMoveCtas);
}

TEST(CoResidenceTest, OneThatIsClosedOrFailsToJoinGivesItsPlaceBack) {
  const int before = CountThatFit(0);
  std::vector<Rank> ranks = JoinedRanks(2, kBytes);
  EXPECT_EQ(CountThatFit(0), before - 1);

  for (const Rank& rank : ranks) ASSERT_TRUE(rank.communicator->Close(Soon(), Clock::Real()).ok());
  FakeNccl::Fail("ncclCommInitRankConfig", 1, ncclSystemError);
  EXPECT_FALSE(Library().Join(FakeDevice(0), Library().NewId().value(), 0, 2).ok());

  EXPECT_EQ(CountThatFit(0), before);
}

// Its kernels may still be there.
TEST(CoResidenceTest, OneWhoseAbortDoesNotComeBackKeepsItsPlace) {
  const int before = CountThatFit(3);
  auto stuck = Library().Join(FakeDevice(3), Library().NewId().value(), 0, 2).value();
  FakeNccl::Fail("ncclCommAbort", 1, FakeNccl::kLost);

  EXPECT_EQ(stuck->Abort(Shortly(), Clock::Real()).reason(), "nccl_stuck");
  stuck.reset();

  EXPECT_EQ(CountThatFit(3), before - 1);
}

TEST(CoResidenceTest, WhatTheEnvironmentMakesNcclTakeIsCounted) {
  ASSERT_EQ(setenv("NCCL_MIN_NCHANNELS", "24", 1), 0);
  const int with_more = CountThatFit(0);
  ASSERT_EQ(unsetenv("NCCL_MIN_NCHANNELS"), 0);

  EXPECT_EQ(with_more, kBudget / 32) << "NCCL rounds up to a power of two";
  EXPECT_EQ(CountThatFit(0), kBudget / kMoveCtas);
}

TEST(CoResidenceTest, ACollectiveIsCountedOnEachOfItsDevicesAndRefusedWhereOneIsFull) {
  const std::vector<Device*> devices = {&FakeDevice(0), &FakeDevice(1)};
  {
    const auto sums = Library().MakeCollective(devices, Soon(), Clock::Real());
    ASSERT_TRUE(sums.ok()) << sums.status().ToString();
    EXPECT_EQ(CountThatFit(0), (kBudget - kSumCtas) / kMoveCtas);
    EXPECT_EQ(CountThatFit(1), (kBudget - kSumCtas) / kMoveCtas);
  }
  const auto full = FillDevice(FakeDevice(1), Library());

  EXPECT_EQ(Library().MakeCollective(devices, Soon(), Clock::Real()).status().reason(), "nccl_too_many");

  EXPECT_EQ(CountThatFit(0), kBudget / kMoveCtas) << "rank 0's place is free again";
}

// The quarter of a device that the budget leaves.
TEST(CoResidenceTest, SomebodyElsesKernelFitsBesideAllThatBasculesCommunicatorsMayHave) {
  std::vector<std::vector<Rank>> pairs;
  for (int i = 0; i < kBudget / kMoveCtas; ++i) pairs.push_back(JoinedRanks(2, kBytes));
  for (const std::vector<Rank>& pair : pairs) {  // each waits for a peer that has not begun
    ASSERT_TRUE(pair[0].communicator->Move(std::vector{pair[0].To(1, 0, kBytes)}, *pair[0].stream).ok());
    ASSERT_TRUE(pair[0].Settle().ok());
  }
  ASSERT_TRUE(Comes([&] { return FakeNccl::Census().ctas == kBudget / kMoveCtas * kMoveCtas; }));
  std::vector<OthersPair> others = OthersPairs(1);

  ASSERT_TRUE(others[0].sender.Move());
  ASSERT_TRUE(others[0].receiver.Move());

  EXPECT_TRUE(others[0].sender.rank().Drain().ok());
  EXPECT_TRUE(others[0].receiver.rank().Drain().ok());
}

}  // namespace
}  // namespace bascule
