#include "engine_side/decode/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace bascule {
namespace {

TEST(RankThreadsTest, EveryRankRunsTheWorkOnceAndAllAreDoneOnReturn) {
  for (const int ranks : {1, 2, 3, 8}) {
    RankThreads threads(ranks);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> runs(static_cast<std::size_t>(ranks));

      threads.Run([&](int rank) { ++runs[static_cast<std::size_t>(rank)]; });

      ASSERT_EQ(runs, std::vector<int>(static_cast<std::size_t>(ranks), 1)) << "round " << round;
    }
  }
}

TEST(RankThreadsTest, WhatAnyRankWroteBeforeAMeetingAllReadAfterIt) {
  for (const int ranks : {2, 5, 8}) {
    RankThreads threads(ranks);
    std::vector<int> written(static_cast<std::size_t>(ranks));
    std::atomic<int> stale = 0;

    threads.Run([&](int rank) {
      for (int round = 1; round <= 300; ++round) {
        written[static_cast<std::size_t>(rank)] = round;
        threads.Meet();
        for (const int value : written) stale += value != round;
        threads.Meet();  // nobody writes on while another reads
      }
    });

    EXPECT_EQ(stale, 0) << ranks << " ranks";
  }
}

TEST(RankThreadsTest, ARankKeepsItsThreadAndTheFirstIsTheCaller) {
  RankThreads threads(3);
  std::vector<std::thread::id> first(3), second(3);

  threads.Run([&](int rank) { first[static_cast<std::size_t>(rank)] = std::this_thread::get_id(); });
  threads.Run([&](int rank) { second[static_cast<std::size_t>(rank)] = std::this_thread::get_id(); });

  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[1], first[2]);
}

TEST(RankThreadsTest, ThreadsThatNeverRanAnythingEnd) {
  RankThreads threads(8);

  EXPECT_EQ(threads.ranks(), 8);
}

}  // namespace
}  // namespace bascule
