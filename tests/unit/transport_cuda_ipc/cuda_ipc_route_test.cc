// Both ends in one process, over the fake CUDA runtime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {
namespace {

class CudaIpcRouteTest : public testing::Test {
 protected:
  void Open() {
    listener_->Expect(kHello.connection);
    sender_ = dialer_.Dial(listener_->endpoint(), kHello, Soon()).value();
    receiver_ = listener_->Accept(kHello.connection, kHello.route, Soon()).value();
  }

  // Sends frames through both parts in an order drawn from `seed`; how many arrived wrong.
  int CountWrong(std::uint64_t seed, Mistake mistake) {
    constexpr int kFrames = 8;
    FakeCuda::SetSeed(seed);
    FrameSource source(device_, *sender_);
    FrameSink sink(device_, *receiver_);
    for (int number = 0; number < kFrames; ++number) {
      EXPECT_TRUE(source.Send(number, mistake).ok());
      EXPECT_TRUE(sink.Take(mistake).ok());
    }
    for (int free = 0; free < kHello.credits && sender_->NextAck(Soon()).ok();) free += 1;
    EXPECT_TRUE(Drain(device_, sink.stream()).ok());
    EXPECT_TRUE(Drain(device_, source.stream()).ok());
    return sink.CountWrong();
  }

  // Whether some order of the streams shows the mistake.
  bool IsFound(Mistake mistake) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      if (CountWrong(seed, mistake) > 0) return true;
    }
    return false;
  }

  TempDirectory directory_;
  Device& device_ = FakeDevice();
  std::unique_ptr<CudaIpcListener> listener_ = CudaIpcListener::Create(directory_.File("engine.sock"), device_).value();
  CudaIpcDialer dialer_{device_};
  std::unique_ptr<BucketSender> sender_;
  std::unique_ptr<BucketReceiver> receiver_;
};

TEST_F(CudaIpcRouteTest, BothPartsOfAFrameArriveAsTheyWereSentWhateverOrderStreamsRunIn) {
  Open();
  ASSERT_TRUE(sender_->HasDevicePayload());

  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(CountWrong(seed, Mistake::kNone), 0) << "seed " << seed;
  }
}

TEST_F(CudaIpcRouteTest, AFrameThatIsSentWithoutTheEventOfItsFillingIsFoundOut) {
  Open();

  EXPECT_TRUE(IsFound(Mistake::kSentBeforeItIsFilled));
}

TEST_F(CudaIpcRouteTest, AFrameThatIsGivenBackWithoutTheEventOfItsReadingIsFoundOut) {
  Open();

  EXPECT_TRUE(IsFound(Mistake::kGivenBackWhileItIsRead));
}

TEST_F(CudaIpcRouteTest, SeveralFramesAreFilledAtOnceAndSentInAnyOrder) {
  Open();
  FrameSink sink(device_, *receiver_);
  const auto first_stream = device_.MakeStream(StreamPriority::kNormal).value();
  const auto second_stream = device_.MakeStream(StreamPriority::kNormal).value();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    FakeCuda::SetSeed(seed);
    const int base = 2 * static_cast<int>(seed - 1);
    ASSERT_TRUE(first_stream->Fill(sender_->AcquireDevicePayload(), ByteOf(base + 1)).ok());
    const std::uint32_t first = sender_->PutBy(*first_stream).value();
    ASSERT_TRUE(second_stream->Fill(sender_->AcquireDevicePayload(), ByteOf(base)).ok());
    const std::uint32_t second = sender_->PutBy(*second_stream).value();
    EXPECT_NE(first, second);
    EXPECT_FALSE(sender_->HasCredit()) << "a frame put by keeps its credit";

    for (const auto& [number, stream, byte] :
         {std::tuple(second, second_stream.get(), base), std::tuple(first, first_stream.get(), base + 1)}) {
      sender_->TakeUp(number);
      sender_->Acquire()[0] = ByteOf(byte);
      ASSERT_TRUE(sender_->SendFilledOn(1, kHello.frame_bytes, *stream).ok());
      ASSERT_TRUE(sink.Take().ok());
    }
    for (int free = 0; free < kHello.credits; ++free) ASSERT_TRUE(sender_->NextAck(Soon()).ok());
  }

  ASSERT_TRUE(Drain(device_, sink.stream()).ok());
  EXPECT_EQ(sink.CountWrong(), 0);
}

TEST_F(CudaIpcRouteTest, ARouteThatClosesWaitsForTheDeviceToFillWhatWasPutBy) {
  Open();
  const auto stream = device_.MakeStream(StreamPriority::kNormal).value();
  const int allocations = FakeCuda::Census().allocations;
  ASSERT_TRUE(stream->Fill(sender_->AcquireDevicePayload(), std::byte{7}).ok());
  ASSERT_TRUE(sender_->PutBy(*stream).ok());

  receiver_.reset();
  sender_.reset();

  EXPECT_EQ(FakeCuda::Census().allocations, allocations - 1);
  EXPECT_TRUE(Drain(device_, *stream).ok()) << "the memory was there until it was filled";
}

TEST_F(CudaIpcRouteTest, NothingIsOpenedThatTheSameProcessMade) {
  Open();

  EXPECT_EQ(FakeCuda::Census().opened_allocations, 0);
  EXPECT_EQ(sender_->AcquireDevicePayload().size(), static_cast<std::size_t>(kHello.frame_bytes));
}

// C-091.
TEST_F(CudaIpcRouteTest, ClosedRoutesReleaseTheirDeviceMemoryAndEventsWhicheverEndGoesFirst) {
  (void)device_.memory().Allocate(1).value();
  const FakeCudaCensus before = FakeCuda::Census();
  for (int round = 0; round < 4; ++round) {
    listener_->Forget(kHello.connection);
    Open();
    if (round % 2 == 0) {
      sender_.reset();
      receiver_.reset();
    } else {
      receiver_.reset();
      sender_.reset();
    }

    EXPECT_EQ(FakeCuda::Census().allocations, before.allocations);
    EXPECT_EQ(FakeCuda::Census().events, before.events);
  }
}

// C-095.
TEST_F(CudaIpcRouteTest, AnEndpointOnAnotherDeviceCannotBeReachedAndIsRefusedByName) {
  CudaIpcDialer elsewhere(FakeDevice(1));
  listener_->Expect(kHello.connection);

  EXPECT_FALSE(elsewhere.CanReach(listener_->endpoint()));
  const Status status = elsewhere.Dial(listener_->endpoint(), kHello, Soon()).status();
  EXPECT_EQ(status.reason(), "other_device");
  EXPECT_THAT(status.message(), testing::AllOf(testing::HasSubstr(device_.description().uuid.ToString()),
                                               testing::HasSubstr(FakeDevice(1).description().uuid.ToString())));
  EXPECT_TRUE(dialer_.Dial(listener_->endpoint(), kHello, Soon()).ok()) << "the refused one took no place";
}

// C-095.
TEST_F(CudaIpcRouteTest, TheEndpointNamesTheDeviceByItsUuid) {
  const Result<CudaIpcAddress> address = ParseCudaIpcAddress(listener_->endpoint().address);

  ASSERT_TRUE(address.ok()) << address.status().ToString();
  EXPECT_EQ(address->devices, std::vector{device_.description().uuid});
  EXPECT_EQ(address->path, directory_.File("engine.sock"));
  for (const char* const text : {"", "/run/engine.sock", "GPU-0:/run/engine.sock"}) {
    EXPECT_FALSE(ParseCudaIpcAddress(text).ok()) << text;
    EXPECT_FALSE(dialer_.CanReach({TransportKind::kCudaIpc, text}));
  }
}

}  // namespace
}  // namespace bascule
