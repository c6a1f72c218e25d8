#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <initializer_list>
#include <limits>

#include "base/checked_math.h"
#include "base/clock.h"
#include "base/error_text.h"
#include "base/hex.h"
#include "base/ids.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/thread_priority.h"
#include "base/worker.h"
#include "tests/support/fake_clock.h"

namespace bascule {
namespace {

Result<int> Half(int number) {
  if (number % 2 != 0) return Status::InvalidArgument("odd", fmt::format("got={}", number));
  return number / 2;
}

Result<int> Quarter(int number) {
  ASSIGN_OR_RETURN(const int half, Half(number));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusTest, ErrorPassesThroughAssignOrReturnWithCodeReasonAndMessage) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), Status::InvalidArgument("odd", "got=3"));
  EXPECT_EQ(Quarter(6).status().ToString(), "INVALID_ARGUMENT odd: got=3");
}

TEST(StatusTest, ContextGoesBeforeTheMessageAndKeepsTheReason) {
  const Status status = Status::DataLoss("short_header", "got=3").WithContext("bucket 7");

  EXPECT_EQ(status.reason(), "short_header");
  EXPECT_EQ(status.message(), "bucket 7: got=3");
}

TEST(ErrorTextTest, ALongMessageKeepsItsBeginningAndNoHalfCharacter) {
  const Status status = Status::DataLoss("reason", "aé€𝄞b");  // of 1, 2, 3, 4 and 1 bytes

  for (const auto& [bytes, text] : std::initializer_list<std::pair<std::size_t, const char*>>{
           {0, ""}, {1, "a"}, {2, "a"}, {3, "aé"}, {5, "aé"}, {6, "aé€"}, {9, "aé€"}, {10, "aé€𝄞"}, {11, "aé€𝄞b"}}) {
    EXPECT_EQ(WithShortText(status, bytes), Status::DataLoss("reason", text)) << bytes;
  }
  EXPECT_TRUE(WithShortText(OkStatus(), 0).ok());
}

TEST(Sha256Test, EqualsThePublishedVectorOfFips180) {
  EXPECT_EQ(Sha256Of("abc").ToHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(HexTest, RefusesOddLengthAndForeignCharacters) {
  EXPECT_EQ(BytesOfHex("abc").status().reason(), "bad_hex");
  EXPECT_EQ(BytesOfHex("zz").status().reason(), "bad_hex");
  EXPECT_EQ(HexOf(*BytesOfHex("00ffA5")), "00ffa5");
}

TEST(CheckedMathTest, OverflowAndNegativeFactorsHaveNoValue) {
  const std::int64_t large[] = {std::int64_t{1} << 62, 4};
  const std::int64_t negative[] = {4, -1};

  EXPECT_FALSE(CheckedProduct(large));
  EXPECT_FALSE(CheckedProduct(negative));
  EXPECT_FALSE(CheckedAdd(std::numeric_limits<std::int64_t>::max(), std::int64_t{1}));
  EXPECT_FALSE(CheckedCast<std::uint8_t>(256));
}

TEST(WorkerTest, DestructionStopsAndJoinsTheThread) {
  std::atomic<bool> stopped{false};
  {
    Worker worker("test", [&](std::stop_token stop) {
      Clock::Real().SleepUntil(Clock::Real().Now() + std::chrono::hours(1), stop);
      stopped = true;
    });
  }
  EXPECT_TRUE(stopped);
}

TEST(ThreadPriorityTest, AThreadKeepsToItsCoresAndCoresThatAreNotThereAreRefused) {
  cpu_set_t usable, kept;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  int core = 0;
  while (!CPU_ISSET(core, &usable)) ++core;

  ASSERT_TRUE(CheckCores({core}).ok());
  Worker("pinned", [&](std::stop_token) {
    PinToCores({core});
    PinToCores({});  // changes nothing
    sched_getaffinity(0, sizeof(kept), &kept);
  }).Join();

  EXPECT_EQ(CPU_COUNT(&kept), 1);
  EXPECT_TRUE(CPU_ISSET(core, &kept));
  EXPECT_EQ(CheckCores({core, core}).reason(), "bad_cores");
  EXPECT_EQ(CheckCores({-1}).reason(), "bad_cores");
  EXPECT_EQ(CheckCores({1 << 20}).reason(), "bad_cores");
}

TEST(ClockTest, AWaitOnTheFakeClockEndsWhenTheTestMovesIt) {
  FakeClock clock;
  const TimePoint until = clock.Now() + std::chrono::hours(5);
  std::atomic<bool> slept_to_the_end{false};
  {
    Worker worker("waiter", [&](std::stop_token stop) { slept_to_the_end = clock.SleepUntil(until, stop); });

    clock.Advance(std::chrono::hours(5));
    worker.Join();
  }
  EXPECT_TRUE(slept_to_the_end);
}

TEST(IdsTest, MintedIdsDifferAndAreNeverZero) {
  const SessionId a = SessionId::Mint();
  EXPECT_NE(a, SessionId::Mint());
  EXPECT_NE(a.value, 0u);
  EXPECT_EQ(a.ToString().size(), 16u);
}

}  // namespace
}  // namespace bascule
