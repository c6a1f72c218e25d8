// What a communicator does when NCCL fails, or a peer never comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/support/process_census.h"
#include "tests/support/waited_clock.h"
#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kBytes = 50'000;

// What moves from the first of two ranks to the second, and whether it arrived.
testing::AssertionResult CanMove(const std::vector<Rank>& ranks) {
  if (!ranks[0].Fill(ByteOf(1)).ok() || !ranks[1].Fill(ByteOf(2)).ok()) return testing::AssertionFailure() << "fill";
  for (const Rank& rank : ranks) {
    const Status status = rank.communicator->Broadcast(rank.memory->bytes(), 0, *rank.stream);
    if (!status.ok()) return testing::AssertionFailure() << status.ToString();
  }
  if (const auto done = AllDone(ranks); !done) return done;
  return ranks[1].Read() == std::vector<std::byte>(kBytes, ByteOf(1)) ? testing::AssertionSuccess()
                                                                      : testing::AssertionFailure() << "wrong bytes";
}

TEST(CommunicatorFaultTest, APeerThatNeverArrivesIsWaitedForUntilTheDeadlineAndThenNothingIsLeft) {
  WaitedClock clock;
  const FakeNcclCensus before = (Library(), FakeNccl::Census());
  {
    Rank alone = MakeRank(0, kBytes);
    alone.communicator = Library().Join(*alone.device, Library().NewId().value(), 0, 2).value();

    const Status waited = AwaitSettled(*alone.communicator, Deadline::After(clock, std::chrono::seconds(30)), clock);

    EXPECT_EQ(waited.code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(waited.reason(), "nccl_deadline");
    EXPECT_TRUE(alone.communicator->Abort(Soon(), Clock::Real()).ok());
  }
  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators);
  EXPECT_EQ(FakeNccl::Census().boards, before.boards);
}

TEST(CommunicatorFaultTest, AWaitEndsWhenItIsInterrupted) {
  Rank alone = MakeRank(0, kBytes);
  alone.communicator = Library().Join(*alone.device, Library().NewId().value(), 0, 2).value();

  const Status waited =
      AwaitSettled(*alone.communicator, Soon(), Clock::Real(), [] { return Status::Cancelled("stop"); });

  EXPECT_EQ(waited.reason(), "stop");
}

// C-029.
TEST(CommunicatorFaultTest, AMoveThatNoPeerAnswersEndsWithAnAbortAndTouchesNothingAfterwards) {
  std::vector<Rank> ranks = JoinedRanks(2, kBytes);
  ASSERT_TRUE(ranks[1].Fill(ByteOf(9)).ok());
  ASSERT_TRUE(ranks[1].communicator->Move(std::vector{ranks[1].From(0, 0, kBytes)}, *ranks[1].stream).ok());
  ASSERT_TRUE(ranks[1].Settle().ok());
  const auto behind = ranks[1].device->MakeEvent().value();
  ASSERT_TRUE(ranks[1].stream->Record(*behind).ok());
  EXPECT_EQ(AwaitEvent(*behind, Shortly(), Clock::Real()).reason(), "device_deadline");

  ASSERT_TRUE(ranks[1].communicator->Abort(Soon(), Clock::Real()).ok());
  // The peer comes too late.
  ASSERT_TRUE(ranks[0].Settle().ok());
  ASSERT_TRUE(ranks[0].communicator->Move(std::vector{ranks[0].To(1, 0, kBytes)}, *ranks[0].stream).ok());

  EXPECT_TRUE(AwaitEvent(*behind, Soon(), Clock::Real()).ok()) << "the stream goes on";
  EXPECT_THAT(ranks[1].Read(), Each(ByteOf(9)));
  EXPECT_EQ(ranks[1].communicator->Settled().status().reason(), "communicator_aborted");
  EXPECT_TRUE(ranks[1].communicator->Abort(Soon(), Clock::Real()).ok()) << "once more does nothing";
}

TEST(CommunicatorFaultTest, MovesInOrdersThatDoNotFitStandUntilTheyAreAborted) {
  std::vector<Rank> ranks = JoinedRanks(2, 2 * kBytes);
  for (int r = 0; r < 2; ++r) {
    const Rank& rank = ranks[static_cast<std::size_t>(r)];
    // Both send first, and not as one group: each waits for the other to receive.
    ASSERT_TRUE(rank.communicator->Move(std::vector{rank.To(1 - r, 0, kBytes)}, *rank.stream).ok());
    ASSERT_TRUE(rank.Settle().ok());
    ASSERT_TRUE(rank.communicator->Move(std::vector{rank.From(1 - r, kBytes, kBytes)}, *rank.stream).ok());
    ASSERT_TRUE(rank.Settle().ok());
  }
  const auto behind = ranks[0].device->MakeEvent().value();
  ASSERT_TRUE(ranks[0].stream->Record(*behind).ok());
  EXPECT_EQ(AwaitEvent(*behind, Shortly(), Clock::Real()).reason(), "device_deadline");

  for (const Rank& rank : ranks) ASSERT_TRUE(rank.communicator->Abort(Soon(), Clock::Real()).ok());

  for (const Rank& rank : ranks) EXPECT_TRUE(rank.Drain().ok());
}

TEST(CommunicatorFaultTest, AnAsynchronousErrorIsFoundByTheNextQuestionAndLastsUntilAnotherIsMade) {
  const std::pair<ncclResult_t, const char*> cases[] = {{ncclRemoteError, "nccl_remote_error"},
                                                        {ncclSystemError, "nccl_system_error"},
                                                        {ncclUnhandledCudaError, "nccl_cuda_error"},
                                                        {ncclInternalError, "nccl_error"}};
  for (const auto& [error, reason] : cases) {
    std::vector<Rank> ranks = JoinedRanks(2, kBytes);
    FakeNccl::Fail("ncclCommGetAsyncError", 1, FakeNccl::kAsynchronous + error);

    EXPECT_EQ(ranks[0].Settle().reason(), reason);
    EXPECT_EQ(ranks[0].communicator->Move(std::vector{ranks[0].To(1, 0, 1)}, *ranks[0].stream).reason(), reason);
    EXPECT_EQ(ranks[0].communicator->Close(Soon(), Clock::Real()).reason(), reason) << "it is aborted instead";
    EXPECT_TRUE(CanMove(JoinedRanks(2, kBytes)));
  }
}

// C-101.
TEST(CommunicatorFaultTest, EachCallThatFailsIsNamedWithItsRankAndDeviceAndLeavesNothing) {
  const FakeNcclCensus before = (Library(), FakeNccl::Census());
  for (const char* const call : {"ncclSend", "ncclGroupStart", "ncclGroupEnd", "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(call);
    std::vector<Rank> ranks = JoinedRanks(2, kBytes);
    FakeNccl::Fail(call, 1, ncclInternalError);

    const Status status = ranks[0].communicator->Move(std::vector{ranks[0].To(1, 0, kBytes)}, *ranks[0].stream);

    EXPECT_EQ(status.reason(), "nccl_error");
    EXPECT_THAT(status.message(), AllOf(HasSubstr(call), HasSubstr("rank 0 of 2"), HasSubstr("device 0 GPU-")));
    EXPECT_EQ(ranks[0].communicator->Settled().status(), status) << "the first error stays";
    EXPECT_TRUE(ranks[0].Drain().ok()) << "nothing was enqueued";
  }
  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators);
  FakeNccl::Fail("ncclCommInitRankConfig", 1, ncclSystemError);
  EXPECT_EQ(Library().Join(FakeDevice(), Library().NewId().value(), 0, 2).status().reason(), "nccl_system_error");
  FakeNccl::Fail("ncclGetUniqueId", 1, ncclSystemError);
  EXPECT_EQ(Library().NewId().status().reason(), "nccl_system_error");
}

TEST(CommunicatorFaultTest, TwoRanksOnOneDeviceAreRefused) {
  const CommunicatorId id = Library().NewId().value();
  Rank first = MakeRank(1, kBytes);
  Rank second = MakeRank(1, kBytes);
  first.communicator = Library().Join(*first.device, id, 0, 2).value();
  second.communicator = Library().Join(*second.device, id, 1, 2).value();

  EXPECT_EQ(first.Settle().reason(), "nccl_invalid_usage");
  EXPECT_EQ(second.Settle().reason(), "nccl_invalid_usage");
}

TEST(CommunicatorFaultTest, AnIdWhoseMakerIsGoneIsAnErrorAndNotAWait) {
  Rank late = MakeRank(1, kBytes);
  const CommunicatorId id = Library().NewId().value();
  { const auto maker = Library().Join(FakeDevice(0), id, 0, 2).value(); }

  late.communicator = Library().Join(*late.device, id, 1, 2).value();

  EXPECT_EQ(late.Settle().reason(), "nccl_system_error");
}

// C-034.
// The only call of NCCL that nothing interrupts.
TEST(CommunicatorFaultTest, AnAbortThatDoesNotComeBackIsGivenUpAndSaysThatItsMemoryMustStay) {
  WaitedClock clock;
  std::vector<Rank> ranks = JoinedRanks(2, kBytes);
  FakeNccl::Fail("ncclCommAbort", 1, FakeNccl::kLost);

  const Status aborted = ranks[0].communicator->Abort(Deadline::After(clock, std::chrono::seconds(5)), clock);

  EXPECT_EQ(aborted.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(aborted.reason(), "nccl_stuck");
  EXPECT_TRUE(CanMove(JoinedRanks(2, kBytes))) << "others go on";
}

// C-034.
TEST(CommunicatorFaultTest, ClosingWhileAPeerDoesNotAnswerEndsAtTheDeadlineWithAnAbort) {
  const FakeNcclCensus before = (Library(), FakeNccl::Census());
  std::vector<Rank> ranks = JoinedRanks(2, kBytes);
  ASSERT_TRUE(ranks[0].communicator->Move(std::vector{ranks[0].To(1, 0, kBytes)}, *ranks[0].stream).ok());
  ASSERT_TRUE(ranks[0].Settle().ok());

  EXPECT_EQ(ranks[0].communicator->Close(Shortly(), Clock::Real()).reason(), "nccl_deadline");

  EXPECT_TRUE(ranks[0].Drain().ok());
  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators + 1) << "the peer's own";
}

}  // namespace
}  // namespace bascule
