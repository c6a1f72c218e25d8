// Buckets that a device packs, against those that the host packs of the same weights: header, digests, payload.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "base/worker.h"
#include "bridge/plan/planner.h"
#include "bridge/send/rank_sender.h"
#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/device_send/device_trainer.h"

namespace bascule {
namespace {

constexpr std::int64_t kRows = 200;

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

// What came over the route, as the frame that the host would have packed. A bucket in `damaged` is refused once.
class Collector {
 public:
  Collector(BucketReceiver& receiver, Device& device, const Plan& plan, std::set<std::uint32_t> damaged = {})
      : receiver_(receiver), device_(device), frames_(plan.buckets.size()), damaged_(std::move(damaged)) {
    thread_ = Worker("collect", [this](std::stop_token) { Collect(); });
  }
  const std::vector<std::vector<std::byte>>& Frames() {
    thread_.Join();
    return frames_;
  }

 private:
  void Collect() {
    std::size_t left = frames_.size();
    while (left > 0) {
      const Result<ReceivedFrame> frame = receiver_.Receive(Soon());
      if (!frame.ok()) return;
      const BucketHeader header = ParseBucketHeader(frame->bytes, PlaceOfPayload(*frame)).value();
      BucketAck ack{.bucket = header.bucket, .attempt = header.attempt};
      if (damaged_.erase(header.bucket) > 0) {
        ack.verdict = BucketVerdict::kDamaged;
      } else {
        frames_[header.bucket] = Whole(*frame, header);
        --left;
      }
      if (!receiver_.Acknowledge(*frame, ack).ok()) return;  // a sender that failed has gone
    }
  }
  std::vector<std::byte> Whole(const ReceivedFrame& frame, const BucketHeader& header) {
    std::vector<std::byte> whole(frame.bytes.begin(), frame.bytes.end());
    if (frame.device_payload.empty()) return whole;
    const auto payload =
        ReadDevice(device_, frame.device_payload.first(static_cast<std::size_t>(header.payload_bytes)));
    whole.insert(whole.end(), payload->begin(), payload->end());
    return whole;
  }

  BucketReceiver& receiver_;
  Device& device_;
  std::vector<std::vector<std::byte>> frames_;
  std::set<std::uint32_t> damaged_;
  Worker thread_;
};

class DeviceRankSenderTest : public testing::TestWithParam<TransportKind> {
 protected:
  DeviceRankSenderTest() {
    plan_ =
        MakePlan(trainer_.source().layout(), ShardedTrainer::EngineLayout(1, kRows), {.bucket_bytes = 4096}).value();
    for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) buckets_.push_back(b);
  }

  void OpenRoute(std::int32_t credits = 2) {
    const std::string socket = directory_.File("engine.sock");
    Device& device = trainer_.device().device();
    if (GetParam() == TransportKind::kCudaIpc) {
      listener_ = CudaIpcListener::Create(socket, device).value();
      dialer_ = std::make_unique<CudaIpcDialer>(device);
    } else {
      listener_ = ShmListener::Create(socket).value();
      dialer_ = std::make_unique<ShmDialer>();
    }
    listener_->Expect(1);
    const RouteHello hello{.connection = 1, .route = {0, 0}, .frame_bytes = MaxFrameBytes(plan_), .credits = credits};
    routes_.push_back(dialer_->Dial(listener_->endpoint(), hello, Soon()).value());
    receiver_ = listener_->Accept(1, {0, 0}, Soon()).value();
  }

  Status Send() {
    packer_.emplace(plan_, trainer_.source());
    rank_.emplace(*packer_, routes_, kSession, Soon(), /*pacer=*/nullptr, stop_.get_token());
    return rank_->Run(buckets_, /*attempt=*/0);
  }

  // Where only slices count: gaps of a payload on a device are nobody's.
  void ExpectSlicesAsTheHostPacksThem(const std::vector<std::vector<std::byte>>& frames,
                                      std::uint32_t attempt_of_3 = 0) {
    const TensorSource source = trainer_.on_host().Source();
    const BucketPacker on_host(plan_, source);
    std::vector<TensorDigest> totals(plan_.tensors.size());
    for (const std::uint32_t b : buckets_) {
      std::vector<std::byte> frame(static_cast<std::size_t>(on_host.FrameBytesOf(b)));
      const BucketHeader header{.session = kSession, .bucket = b, .attempt = b == 3 ? attempt_of_3 : 0};
      ASSERT_TRUE(on_host.Pack(header, *on_host.Read({&b, 1}), frame, totals).ok());
      ASSERT_EQ(frames[b].size(), frame.size()) << "bucket " << b;
      const auto head = static_cast<std::size_t>(on_host.HeadBytesOf(b));
      EXPECT_TRUE(std::ranges::equal(std::span(frames[b]).first(head), std::span(frame).first(head))) << "bucket " << b;
      for (const Slice& slice : plan_.buckets[b].slices) {
        const std::size_t at = head + static_cast<std::size_t>(slice.payload_offset);
        const auto size = static_cast<std::size_t>(slice.payload_bytes);
        EXPECT_TRUE(std::ranges::equal(std::span(frames[b]).subspan(at, size), std::span(frame).subspan(at, size)))
            << "bucket " << b << " slice of " << plan_.tensors[static_cast<std::size_t>(slice.tensor)].name;
      }
    }
    EXPECT_EQ(rank_->totals(), totals);
  }

  static constexpr SessionId kSession{.value = 7};
  TempDirectory directory_;
  DeviceTrainer trainer_{/*trainer_ranks=*/1, kRows};
  Plan plan_;
  std::vector<std::uint32_t> buckets_;
  std::unique_ptr<TransportListener> listener_;
  std::unique_ptr<TransportDialer> dialer_;
  std::vector<std::unique_ptr<BucketSender>> routes_;
  std::unique_ptr<BucketReceiver> receiver_;
  std::stop_source stop_;
  std::optional<BucketPacker> packer_;
  std::optional<RankSender> rank_;
};

TEST_P(DeviceRankSenderTest, EveryBucketIsWhatTheHostPacksOfTheSameWeights) {
  OpenRoute();
  ASSERT_GT(buckets_.size(), 6U);
  Collector collector(*receiver_, trainer_.device().device(), plan_);

  ASSERT_TRUE(Send().ok());

  ExpectSlicesAsTheHostPacksThem(collector.Frames());
  EXPECT_FALSE(rank_->source_failed());
}

TEST_P(DeviceRankSenderTest, OneCreditIsEnough) {
  OpenRoute(/*credits=*/1);
  Collector collector(*receiver_, trainer_.device().device(), plan_);

  ASSERT_TRUE(Send().ok());

  ExpectSlicesAsTheHostPacksThem(collector.Frames());
}

TEST_P(DeviceRankSenderTest, ADamagedBucketIsPackedOnceMoreAndCountsOnceInTheTotals) {
  OpenRoute();
  Collector collector(*receiver_, trainer_.device().device(), plan_, {3});

  ASSERT_TRUE(Send().ok());

  ExpectSlicesAsTheHostPacksThem(collector.Frames(), /*attempt_of_3=*/1);
}

TEST_P(DeviceRankSenderTest, WhatADeviceGaveToOneRunServesTheNext) {
  OpenRoute(/*credits=*/4);
  for (int run = 1; run <= 2; ++run) {
    const FakeCudaCensus before = FakeCuda::Census();
    Collector collector(*receiver_, trainer_.device().device(), plan_);
    ASSERT_TRUE(Send().ok());
    static_cast<void>(collector.Frames());
    const FakeCudaCensus after = FakeCuda::Census();
    if (run == 1) continue;
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
    EXPECT_EQ(after.streams, before.streams);
    EXPECT_EQ(after.events, before.events);
  }
}

TEST_P(DeviceRankSenderTest, AKernelThatFailsIsTheSourcesOwnFailureAndNamed) {
  OpenRoute();
  Collector collector(*receiver_, trainer_.device().device(), plan_);
  FakeCuda::Fail("cudaLaunchKernelExC", 3, 9);  // cudaErrorInvalidConfiguration

  const Status sent = Send();

  EXPECT_EQ(sent.reason(), "device_error");
  EXPECT_TRUE(rank_->source_failed());
  routes_.clear();  // the collector hears that it is over
}

INSTANTIATE_TEST_SUITE_P(Transports, DeviceRankSenderTest,
                         testing::Values(TransportKind::kCudaIpc, TransportKind::kShm),
                         [](const auto& kind) { return std::string(TransportName(kind.param)); });

TEST(DeviceReaderTest, BoxesOfADeviceReadAsTheHostsDo) {
  const DeviceTrainer trainer(/*trainer_ranks=*/2, kRows);
  const TensorSource host = trainer.on_host().Source();
  const Plan plan = MakePlan(host.layout(), ShardedTrainer::EngineLayout(2, kRows), {.bucket_bytes = 4096}).value();
  const BucketPacker here(plan, host);
  const BucketPacker there(plan, trainer.source());
  for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
    std::vector<std::byte> want(static_cast<std::size_t>(here.FrameBytesOf(b)));
    std::vector<std::byte> got(want.size());

    ASSERT_TRUE(here.Pack({.bucket = b}, *here.Read({&b, 1}), want, {}).ok());
    ASSERT_TRUE(there.Pack({.bucket = b}, *there.Read({&b, 1}), got, {}).ok());

    EXPECT_EQ(got, want) << "bucket " << b;
  }
}

TEST(DeviceReaderTest, ADeviceThatFailsIsReadNoFurther) {
  const DeviceTrainer trainer(/*trainer_ranks=*/1, kRows);
  const Plan plan =
      MakePlan(trainer.source().layout(), ShardedTrainer::EngineLayout(1, kRows), {.bucket_bytes = 4096}).value();
  const BucketPacker packer(plan, trainer.source());
  const std::uint32_t bucket = 0;
  const auto reader = packer.Read({&bucket, 1});
  FakeCuda::Fail("cudaLaunchKernelExC", 1, 2);

  EXPECT_EQ(reader->Next().status().reason(), "read_failed");
  EXPECT_EQ(reader->Next().status().reason(), "read_failed");
}

}  // namespace
}  // namespace bascule
