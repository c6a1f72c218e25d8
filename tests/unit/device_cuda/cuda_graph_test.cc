// Captured work over the fake CUDA runtime: what a graph repeats, in which order, and what cannot be captured.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"

namespace bascule {
namespace {

using testing::Each;

constexpr std::size_t kBytes = 100'000;

// Two buffers that a graph copies one into the other.
class CudaGraphTest : public testing::Test {
 protected:
  void Write(std::byte value) { std::memset(from_->bytes().data(), std::to_integer<int>(value), kBytes); }
  std::vector<std::byte> Read() const { return {to_->bytes().begin(), to_->bytes().end()}; }
  Status CopyThrough(DeviceStream& stream) {
    RETURN_IF_ERROR(stream.Copy(there_->bytes(), from_->bytes()));
    return stream.Copy(to_->bytes(), there_->bytes());
  }

  Device& device_ = FakeDevice();
  std::unique_ptr<DeviceBuffer> from_ = device_.pinned_memory().Allocate(kBytes).value();
  std::unique_ptr<DeviceBuffer> there_ = device_.memory().Allocate(kBytes).value();
  std::unique_ptr<DeviceBuffer> to_ = device_.pinned_memory().Allocate(kBytes).value();
  std::unique_ptr<DeviceStream> stream_ = device_.MakeStream(StreamPriority::kNormal).value();
  std::unique_ptr<DeviceStream> other_ = device_.MakeStream(StreamPriority::kNormal).value();
  std::unique_ptr<DeviceEvent> event_ = device_.MakeEvent().value();
  std::unique_ptr<DeviceEvent> back_ = device_.MakeEvent().value();
};

TEST_F(CudaGraphTest, WhatIsCapturedRunsWhenItIsLaunchedAndReadsWhatIsThereThen) {
  Write(std::byte{1});
  ASSERT_TRUE(stream_->BeginCapture().ok());
  ASSERT_TRUE(CopyThrough(*stream_).ok());
  Result<std::unique_ptr<DeviceGraph>> graph = stream_->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  ASSERT_TRUE(Drain(device_, *stream_).ok());
  EXPECT_THAT(Read(), Each(std::byte{0}));

  for (const std::byte value : {std::byte{2}, std::byte{3}}) {
    Write(value);
    ASSERT_TRUE(stream_->Launch(**graph).ok());
    ASSERT_TRUE(Drain(device_, *stream_).ok());

    EXPECT_THAT(Read(), Each(value));
  }
}

// The second half runs on another stream, which joins the capture.
Result<std::unique_ptr<DeviceGraph>> CaptureOnTwo(DeviceStream& stream, DeviceStream& other, DeviceEvent& there,
                                                  DeviceEvent& back, const std::function<Status(int)>& half) {
  RETURN_IF_ERROR(stream.BeginCapture());
  const Status captured = [&]() -> Status {
    RETURN_IF_ERROR(half(0));
    RETURN_IF_ERROR(stream.Record(there));
    RETURN_IF_ERROR(other.WaitFor(there));
    RETURN_IF_ERROR(half(1));
    RETURN_IF_ERROR(other.Record(back));
    return stream.WaitFor(back);
  }();
  Result<std::unique_ptr<DeviceGraph>> graph = stream.EndCapture();
  if (!captured.ok()) return captured;
  return graph;
}

TEST_F(CudaGraphTest, AStreamThatWaitsForACapturedEventJoinsAndItsWorkKeepsItsPlaceInEveryOrder) {
  const auto half = [&](int which) {
    return which == 0 ? stream_->Copy(there_->bytes(), from_->bytes()) : other_->Copy(to_->bytes(), there_->bytes());
  };
  Result<std::unique_ptr<DeviceGraph>> graph = CaptureOnTwo(*stream_, *other_, *event_, *back_, half);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();

  for (int seed = 1; seed <= 20; ++seed) {
    FakeCuda::SetSeed(static_cast<std::uint64_t>(seed));
    Write(static_cast<std::byte>(seed));
    ASSERT_TRUE(stream_->Launch(**graph).ok());
    ASSERT_TRUE(Drain(device_, *stream_).ok());

    EXPECT_THAT(Read(), Each(static_cast<std::byte>(seed)));
  }
}

TEST_F(CudaGraphTest, LaunchesOfOneGraphComeOneAfterTheOther) {
  ASSERT_TRUE(stream_->BeginCapture().ok());
  ASSERT_TRUE(CopyThrough(*stream_).ok());
  const auto graph = stream_->EndCapture().value();
  Write(std::byte{5});

  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(stream_->Launch(*graph).ok());
  }
  ASSERT_TRUE(Drain(device_, *stream_).ok());

  EXPECT_THAT(Read(), Each(std::byte{5}));
}

TEST_F(CudaGraphTest, AGraphIsReleasedWithItsOwner) {
  const int before = FakeCuda::Census().graphs;
  {
    ASSERT_TRUE(stream_->BeginCapture().ok());
    const auto graph = stream_->EndCapture().value();
    EXPECT_EQ(FakeCuda::Census().graphs, before + 1);
  }
  EXPECT_EQ(FakeCuda::Census().graphs, before);
}

TEST_F(CudaGraphTest, AStreamThatNobodyWaitsForBreaksTheCaptureAndNothingRuns) {
  ASSERT_TRUE(stream_->BeginCapture().ok());
  ASSERT_TRUE(stream_->Record(*event_).ok());
  ASSERT_TRUE(other_->WaitFor(*event_).ok());
  ASSERT_TRUE(other_->Copy(to_->bytes(), from_->bytes()).ok());

  const Result<std::unique_ptr<DeviceGraph>> graph = stream_->EndCapture();

  EXPECT_EQ(graph.status().reason(), "capture_broken") << graph.status().ToString();
  ASSERT_TRUE(CopyThrough(*other_).ok());  // both streams go on
  ASSERT_TRUE(Drain(device_, *other_).ok());
  ASSERT_TRUE(Drain(device_, *stream_).ok());
}

TEST_F(CudaGraphTest, WhatCannotBeCapturedIsRefusedAndBreaksTheCapture) {
  ASSERT_TRUE(stream_->Record(*event_).ok());
  const std::vector<std::pair<const char*, std::function<Status()>>> forbidden = {
      {"an allocation", [&] { return device_.memory().Allocate(1).status(); }},
      {"pinned memory", [&] { return device_.pinned_memory().Allocate(1).status(); }},
      {"a question", [&] { return event_->Passed().status(); }},
      {"an event from outside", [&] { return stream_->WaitFor(*event_); }}};
  for (const auto& [what, call] : forbidden) {
    ASSERT_TRUE(stream_->BeginCapture().ok());

    EXPECT_EQ(call().reason(), "capture_broken") << what;
    EXPECT_EQ(stream_->EndCapture().status().reason(), "capture_broken") << what;
  }
  EXPECT_EQ(FakeCuda::Census().graphs, 0);
}

TEST_F(CudaGraphTest, OtherThreadsAllocateAndWaitWhileOneCaptures) {
  ASSERT_TRUE(stream_->BeginCapture().ok());
  Status elsewhere;
  std::thread([&] {
    elsewhere = device_.memory().Allocate(kBytes).status();
    if (elsewhere.ok()) elsewhere = Drain(device_, *other_);
  }).join();

  EXPECT_TRUE(elsewhere.ok()) << elsewhere.ToString();
  EXPECT_TRUE(stream_->EndCapture().ok());
}

TEST_F(CudaGraphTest, EveryCallOfCudaThatFailsIsToldByItsName) {
  for (const char* const call :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch"}) {
    FakeCuda::Fail(call, 1, cudaErrorMemoryAllocation);
    const Status status = [&]() -> Status {
      RETURN_IF_ERROR(stream_->BeginCapture());
      ASSIGN_OR_RETURN(const auto graph, stream_->EndCapture());
      return stream_->Launch(*graph);
    }();

    EXPECT_EQ(status.reason(), "device_memory") << call;
    EXPECT_THAT(status.message(), testing::HasSubstr(call));
  }
}

}  // namespace
}  // namespace bascule
