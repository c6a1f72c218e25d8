// The device layer and cuda_ipc on a real GPU, where there is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "device/backend.h"
#include "tests/support/device_work/device_work.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"
#include "tests/unit/transport_cuda_ipc/peer.h"

namespace bascule {
namespace {

constexpr int kFrames = 200;

class GpuCudaIpcTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<DeviceBackend*> backend = LoadCudaBackend();
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    const Result<Device*> device = (*backend)->Open(0);
    if (device.status().reason() == "no_cuda_device") GTEST_SKIP() << "no CUDA device: " << device.status().message();
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    device_ = *device;
    listener_ = CudaIpcListener::Create(directory_.File("engine.sock"), *device_).value();
    listener_->Expect(kHello.connection);
  }
  // Takes all frames of a sender, and says how many were not what was sent.
  int TakeAll(BucketReceiver& receiver, const std::function<Status(int)>& send) {
    FrameSink sink(*device_, receiver);
    for (int number = 0; number < kFrames; ++number) {
      EXPECT_TRUE(send(number).ok());
      EXPECT_TRUE(sink.Take().ok());
    }
    EXPECT_TRUE(Drain(*device_, sink.stream()).ok());
    return sink.CountWrong();
  }

  TempDirectory directory_;
  Device* device_ = nullptr;
  std::unique_ptr<CudaIpcListener> listener_;
};

TEST_F(GpuCudaIpcTest, NewMemoryIsZeroAndKeepsWhatIsWritten) {
  const auto memory = device_->memory().Allocate(std::size_t{5} << 20).value();
  std::vector<std::byte> bytes(memory->bytes().size());

  EXPECT_EQ(*ReadDevice(*device_, memory->bytes()), bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  ASSERT_TRUE(WriteDevice(*device_, memory->bytes(), bytes).ok());

  EXPECT_EQ(*ReadDevice(*device_, memory->bytes()), bytes);
}

TEST_F(GpuCudaIpcTest, MemoryOfTheHostAndOfOtherAllocatorsIsRefused) {
  const auto pinned = device_->pinned_memory().Allocate(100).value();
  const auto memory = device_->memory().Allocate(100).value();
  const auto stream = device_->MakeStream(StreamPriority::kHigh).value();
  std::vector<std::byte> pageable(100);

  EXPECT_EQ(stream->Copy(memory->bytes(), pageable).reason(), "not_pinned");
  EXPECT_EQ(device_->Export(pinned->bytes()).status().reason(), "not_exportable");
  EXPECT_EQ(device_->Export(pageable).status().reason(), "not_exportable");
  EXPECT_EQ(device_->memory().Allocate(std::size_t{1} << 50).status().reason(), "device_memory");
}

TEST_F(GpuCudaIpcTest, FramesArriveWholeWithinOneProcess) {
  CudaIpcDialer dialer(*device_);
  const auto sender = dialer.Dial(listener_->endpoint(), kHello, Soon()).value();
  const auto receiver = listener_->Accept(kHello.connection, kHello.route, Soon()).value();
  FrameSource source(*device_, *sender);

  EXPECT_EQ(TakeAll(*receiver, [&](int number) { return source.Send(number); }), 0);
}

TEST_F(GpuCudaIpcTest, FramesOfAnotherProcessArriveWhole) {
  Peer trainer("send", listener_->endpoint().address, fmt::format("{}", kFrames).c_str());
  {
    const Result<std::unique_ptr<BucketReceiver>> receiver = listener_->Accept(kHello.connection, kHello.route, Soon());
    ASSERT_TRUE(receiver.ok()) << receiver.status().ToString();

    EXPECT_EQ(TakeAll(**receiver, [](int) { return OkStatus(); }), 0);
  }
  EXPECT_EQ(trainer.Wait(), 0);
}

}  // namespace
}  // namespace bascule
