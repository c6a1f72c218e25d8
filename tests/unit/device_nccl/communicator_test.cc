// Communicators over the fake NCCL: what moves, in which order, and what is left when they end.
#include "device/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/worker.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

using testing::Each;

constexpr std::size_t kBytes = 50'000;

TEST(CommunicatorTest, RanksJoinWithoutWaitingAndSettleWhenAllHaveCome) {
  const CommunicatorId id = Library().NewId().value();
  Rank first = MakeRank(0, 1);
  Rank second = MakeRank(1, 1);
  first.communicator = Library().Join(*first.device, id, 0, 2).value();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(*first.communicator->Settled());

  second.communicator = Library().Join(*second.device, id, 1, 2).value();

  EXPECT_TRUE(first.Settle().ok());
  EXPECT_TRUE(second.Settle().ok());
  EXPECT_EQ(second.communicator->rank(), 1);
  EXPECT_EQ(second.communicator->size(), 2);
}

TEST(CommunicatorTest, WhatIsSentArrivesInTheOrderOfTheStreamsWhateverTheirPace) {
  std::vector<Rank> ranks = JoinedRanks(2, 3 * kBytes);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    FakeCuda::SetSeed(seed);
    FakeNccl::SetSeed(seed);
    const auto value = static_cast<std::byte>(seed);
    ASSERT_TRUE(ranks[1].Fill(std::byte{0}).ok());
    ASSERT_TRUE(ranks[0].Fill(value).ok());

    ASSERT_TRUE(ranks[0].communicator->Move(std::vector{ranks[0].To(1, 0, kBytes)}, *ranks[0].stream).ok());
    ASSERT_TRUE(ranks[1].communicator->Move(std::vector{ranks[1].From(0, kBytes, kBytes)}, *ranks[1].stream).ok());
    ASSERT_TRUE(ranks[0].Settle().ok());
    ASSERT_TRUE(ranks[0].Fill(std::byte{0xee}).ok());  // behind the move, so it changes nothing
    ASSERT_TRUE(AllDone(ranks));

    const std::vector<std::byte> got = ranks[1].Read();
    EXPECT_THAT(std::span(got).subspan(0, kBytes), Each(std::byte{0}));
    EXPECT_THAT(std::span(got).subspan(kBytes, kBytes), Each(value));
    EXPECT_THAT(std::span(got).subspan(2 * kBytes, kBytes), Each(std::byte{0}));
  }
}

// What a group is for: one after another, the sends would wait for each other.
TEST(CommunicatorTest, AGroupsPartsGoOnSideBySideSoRanksMayExchange) {
  std::vector<Rank> ranks = JoinedRanks(3, 3 * kBytes);
  for (int r = 0; r < 3; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    ASSERT_TRUE(ranks[rank].Fill(ByteOf(r)).ok());
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == r) continue;
      transfers.push_back(ranks[rank].To(peer, static_cast<std::size_t>(r) * kBytes, kBytes));
      transfers.push_back(ranks[rank].From(peer, static_cast<std::size_t>(peer) * kBytes, kBytes));
    }
    ASSERT_TRUE(ranks[rank].communicator->Move(transfers, *ranks[rank].stream).ok());
  }

  ASSERT_TRUE(AllDone(ranks));
  for (const Rank& rank : ranks) {
    const std::vector<std::byte> got = rank.Read();
    for (int r = 0; r < 3; ++r) {
      EXPECT_THAT(std::span(got).subspan(static_cast<std::size_t>(r) * kBytes, kBytes), Each(ByteOf(r)));
    }
  }
}

TEST(CommunicatorTest, ABroadcastGivesEveryRankWhatTheRootHas) {
  std::vector<Rank> ranks = JoinedRanks(4, kBytes);
  for (int root : {0, 2}) {
    for (int r = 0; r < 4; ++r) ASSERT_TRUE(ranks[static_cast<std::size_t>(r)].Fill(ByteOf(r)).ok());

    for (const Rank& rank : ranks) {
      ASSERT_TRUE(rank.communicator->Broadcast(rank.memory->bytes(), root, *rank.stream).ok());
    }

    ASSERT_TRUE(AllDone(ranks));
    for (const Rank& rank : ranks) EXPECT_THAT(rank.Read(), Each(ByteOf(root)));
  }
}

// C-031.
TEST(CommunicatorTest, OneThatIsNotSettledTakesNoMoves) {
  const CommunicatorId id = Library().NewId().value();
  Rank first = MakeRank(0, kBytes);
  first.communicator = Library().Join(*first.device, id, 0, 2).value();

  const Status move = first.communicator->Move(std::vector{first.To(1, 0, 1)}, *first.stream);

  EXPECT_EQ(move.reason(), "communicator_busy");
  EXPECT_EQ(first.communicator->Register(first.memory->bytes()).reason(), "communicator_busy");
  EXPECT_EQ(first.communicator->Broadcast(first.memory->bytes(), 0, *first.stream).reason(), "communicator_busy");
}

TEST(CommunicatorTest, ClosingFinishesWhatIsUnderWayAndGivesBackEverything) {
  const FakeNcclCensus before = (Library(), FakeNccl::Census());
  std::vector<Rank> ranks = JoinedRanks(2, kBytes);
  for (const Rank& rank : ranks) ASSERT_TRUE(rank.communicator->Register(rank.memory->bytes()).ok());
  EXPECT_EQ(FakeNccl::Census().registrations, before.registrations + 2);
  ASSERT_TRUE(ranks[0].Fill(ByteOf(7)).ok());
  ASSERT_TRUE(ranks[0].communicator->Move(std::vector{ranks[0].To(1, 0, kBytes)}, *ranks[0].stream).ok());
  ASSERT_TRUE(ranks[1].communicator->Move(std::vector{ranks[1].From(0, 0, kBytes)}, *ranks[1].stream).ok());
  for (const Rank& rank : ranks) ASSERT_TRUE(rank.Settle().ok());

  for (const Rank& rank : ranks) EXPECT_TRUE(rank.communicator->Close(Soon(), Clock::Real()).ok());

  EXPECT_THAT(ranks[1].Read(), Each(ByteOf(7)));
  EXPECT_EQ(ranks[0].communicator->Settled().status().reason(), "communicator_closed");
  const FakeNcclCensus after = FakeNccl::Census();
  EXPECT_EQ(after.communicators, before.communicators);
  EXPECT_EQ(after.registrations, before.registrations);
  EXPECT_EQ(after.boards, before.boards);
}

TEST(CommunicatorTest, WhenItsMembersChangeAnotherOneIsMadeAndTheOldOneEndsByItself) {
  std::vector<Rank> ranks = JoinedRanks(3, kBytes);
  ASSERT_TRUE(ranks[2].communicator->Abort(Soon(), Clock::Real()).ok());  // this rank leaves, whatever the others do
  const CommunicatorId id = Library().NewId().value();

  for (int r = 0; r < 2; ++r) {
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    ASSERT_TRUE(rank.communicator->Close(Soon(), Clock::Real()).ok());
    rank.communicator = Library().Join(*rank.device, id, r, 2).value();
  }
  ASSERT_TRUE(ranks[0].Settle().ok() && ranks[1].Settle().ok());
  ASSERT_TRUE(ranks[0].Fill(ByteOf(5)).ok());
  for (int r = 0; r < 2; ++r) {
    const Rank& rank = ranks[static_cast<std::size_t>(r)];
    ASSERT_TRUE(rank.communicator->Broadcast(rank.memory->bytes(), 0, *rank.stream).ok());
  }

  ASSERT_TRUE(AllDone(std::span(ranks).first(2)));
  EXPECT_THAT(ranks[1].Read(), Each(ByteOf(5)));
}

TEST(CommunicatorTest, RanksMayBeThreads) {
  const CommunicatorId id = Library().NewId().value();
  std::vector<Rank> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(MakeRank(r, kBytes));
  std::vector<Status> said(4);
  {
    std::vector<Worker> threads;
    for (int r = 0; r < 4; ++r) {
      threads.emplace_back("rank", [&, r](const std::stop_token&) {
        Rank& rank = ranks[static_cast<std::size_t>(r)];
        said[static_cast<std::size_t>(r)] = [&]() -> Status {
          ASSIGN_OR_RETURN(rank.communicator, Library().Join(*rank.device, id, r, 4));
          RETURN_IF_ERROR(rank.Settle());
          RETURN_IF_ERROR(rank.Fill(ByteOf(r)));
          RETURN_IF_ERROR(rank.communicator->Broadcast(rank.memory->bytes(), 3, *rank.stream));
          RETURN_IF_ERROR(rank.Settle());
          return rank.Drain();
        }();
      });
    }
  }

  for (const Status& status : said) EXPECT_TRUE(status.ok()) << status.ToString();
  for (const Rank& rank : ranks) EXPECT_THAT(rank.Read(), Each(ByteOf(3)));
}

}  // namespace
}  // namespace bascule
