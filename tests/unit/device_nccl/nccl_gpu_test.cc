// The real NCCL on real GPUs, where there are some. One GPU takes a communicator of one rank, which is enough for how
// it is joined, used and ended; bytes that go from device to device need two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/backend.h"
#include "device/communicator.h"
#include "tests/support/device_work/device_work.h"

namespace bascule {
namespace {

constexpr std::size_t kBytes = 1 << 20;

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

class GpuNcclTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<DeviceBackend*> backend = LoadCudaBackend();
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    const auto found = (*backend)->Devices();
    if (!found.ok()) GTEST_SKIP() << "no CUDA device: " << found.status().message();
    for (const DeviceDescription& device : *found) devices_.push_back((*backend)->Open(device.ordinal).value());
    const Result<Communicators*> communicators = LoadCommunicators();
    ASSERT_TRUE(communicators.ok()) << communicators.status().ToString();
    communicators_ = *communicators;
  }

  std::vector<Device*> devices_;
  Communicators* communicators_ = nullptr;
};

TEST_F(GpuNcclTest, ARankJoinsRegistersMovesAndCloses) {
  Device& device = *devices_[0];
  const auto memory = device.memory().Allocate(kBytes).value();
  const auto stream = device.MakeStream(StreamPriority::kNormal).value();
  auto rank = communicators_->Join(device, communicators_->NewId().value(), 0, 1).value();
  ASSERT_TRUE(AwaitSettled(*rank, Soon(), Clock::Real()).ok());
  ASSERT_TRUE(rank->Register(memory->bytes()).ok());
  ASSERT_TRUE(AwaitSettled(*rank, Soon(), Clock::Real()).ok());
  ASSERT_TRUE(stream->Fill(memory->bytes(), std::byte{7}).ok());

  ASSERT_TRUE(rank->Broadcast(memory->bytes(), 0, *stream).ok());

  ASSERT_TRUE(AwaitSettled(*rank, Soon(), Clock::Real()).ok());
  ASSERT_TRUE(Drain(device, *stream).ok());
  EXPECT_THAT(ReadDevice(device, memory->bytes()).value(), testing::Each(std::byte{7}));
  const Status closed = rank->Close(Soon(), Clock::Real());
  EXPECT_TRUE(closed.ok()) << closed.ToString();
}

TEST_F(GpuNcclTest, AJoinThatNobodyAnswersEndsWithAnAbortInTime) {
  auto rank = communicators_->Join(*devices_[0], communicators_->NewId().value(), 0, 2).value();
  EXPECT_EQ(AwaitSettled(*rank, Deadline::After(Clock::Real(), std::chrono::seconds(1)), Clock::Real()).reason(),
            "nccl_deadline");

  const Status aborted = rank->Abort(Soon(), Clock::Real());

  EXPECT_TRUE(aborted.ok()) << aborted.ToString();
}

// Over two or more, bytes go from device to device; over one this is the call alone.
TEST_F(GpuNcclTest, SumsOverAllDevicesThatThereAre) {
  auto sums = communicators_->MakeCollective(devices_, Soon(), Clock::Real());
  ASSERT_TRUE(sums.ok()) << sums.status().ToString();
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0F);
  std::vector<std::unique_ptr<DeviceBuffer>> memory;
  std::vector<std::unique_ptr<DeviceStream>> streams;
  std::vector<CollectivePart> parts;
  for (Device* const device : devices_) {
    memory.push_back(device->memory().Allocate(values.size() * sizeof(float)).value());
    streams.push_back(device->MakeStream(StreamPriority::kNormal).value());
    ASSERT_TRUE(WriteDevice(*device, memory.back()->bytes(), std::as_bytes(std::span(values))).ok());
    parts.push_back({reinterpret_cast<float*>(memory.back()->bytes().data()), streams.back().get()});
  }

  ASSERT_TRUE((*sums)->AllReduceSum(parts, static_cast<std::int64_t>(values.size())).ok());

  for (float& value : values) value *= static_cast<float>(devices_.size());
  const auto expected = std::as_bytes(std::span(values));
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    ASSERT_TRUE(Drain(*devices_[r], *streams[r]).ok());
    EXPECT_TRUE(std::ranges::equal(ReadDevice(*devices_[r], memory[r]->bytes()).value(), expected)) << "rank " << r;
  }
}

}  // namespace
}  // namespace bascule
