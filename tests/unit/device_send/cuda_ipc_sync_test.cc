// Weights that never leave the device: from a trainer's tensors through frames of cuda_ipc into an engine's slots,
// proven there, and live.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "tests/unit/device_send/device_sync_fixture.h"

namespace bascule {
namespace {

struct Setting {
  int trainer_ranks;
  int engine_ranks;
  Snapshot snapshot;
  FlipMode flip;
};

class CudaIpcSyncTest : public DeviceSyncFixture {};
class CudaIpcSyncsTest : public CudaIpcSyncTest, public testing::WithParamInterface<Setting> {};

TEST_P(CudaIpcSyncsTest, EveryVersionGoesLiveWithTheDigestOfTheTrainersTensors) {
  UseCudaIpc(GetParam().engine_ranks);
  options_.snapshot = GetParam().snapshot;
  receiver_options_.flip = GetParam().flip;
  StartEngine(GetParam().engine_ranks);
  StartDeviceTrainer(GetParam().trainer_ranks);

  for (std::uint32_t step = 1; step <= 2; ++step) {
    FakeCuda::SetSeed(step);
    const PublishReport report = Step(step);

    ExpectLive(report);
    EXPECT_EQ(report.replicas[0].transport, TransportKind::kCudaIpc);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaIpcSyncsTest,
                         testing::Values(Setting{1, 1, Snapshot::kNone, FlipMode::kShadow},
                                         Setting{2, 2, Snapshot::kNone, FlipMode::kInPlace},
                                         Setting{2, 1, Snapshot::kDevice, FlipMode::kShadow}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return fmt::format(
                               "{}TrainerRanks{}EngineRanks{}{}", setting.param.trainer_ranks,
                               setting.param.engine_ranks,
                               setting.param.snapshot == Snapshot::kNone ? "NoSnapshot" : "DeviceSnapshot",
                               setting.param.flip == FlipMode::kShadow ? "Shadow" : "InPlace");
                         });

TEST_F(CudaIpcSyncTest, TheVersionBeforeComesBackWithoutATransfer) {
  UseCudaIpc(1);
  StartEngine(1);
  StartDeviceTrainer(1);
  const PublishReport first = Step(1);
  const PublishReport second = Step(2);
  ASSERT_TRUE(first.AllCommitted() && second.AllCommitted());

  const auto back = receiver_->Rollback(std::nullopt, Deadline::After(Clock::Real(), std::chrono::minutes(1)));

  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->version, first.version);
}

// Every second tensor of `host` in memory of a pool, as torch's expandable segments are; the others as usual.
class PooledTensors {
 public:
  explicit PooledTensors(const TensorSource& host) : stream_(FakeDevice().MakeStream(StreamPriority::kNormal).value()) {
    const RankLayout& rank = host.layout().ranks[0];
    for (const MapRow& row : rank.rows) {
      const LocalTensor& local = rank.tensors[static_cast<std::size_t>(row.local)];
      const auto bytes = static_cast<std::size_t>(local.Bytes());
      std::byte* const address = memory_.size() % 2 == 0 ? OfPool(bytes) : OfDevice(bytes);
      memory_.emplace_back(address, bytes);
      Write(address, {static_cast<const std::byte*>(host.Base(0, row.local)), bytes});
      CHECK(source_
                .Add(0, {.tensor = host.layout().tensors[static_cast<std::size_t>(row.logical)],
                         .box = row.logical_box,
                         .data = address,
                         .stride = local.stride})
                .ok());
    }
    source_.LieOn(FakeWeightDevice());
  }

  const TensorSource& source() const { return source_; }
  std::span<const std::byte> pooled() const { return memory_[0]; }

 private:
  static std::byte* OfPool(std::size_t bytes) {
    void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    void* address = nullptr;
    CHECK(reinterpret_cast<cudaError_t (*)(void**, std::size_t, cudaStream_t)>(dlsym(runtime, "cudaMallocAsync"))(
              &address, bytes, nullptr) == cudaSuccess);
    return static_cast<std::byte*>(address);
  }
  std::byte* OfDevice(std::size_t bytes) {
    buffers_.push_back(FakeDevice().memory().Allocate(bytes).value());
    return buffers_.back()->bytes().data();
  }
  void Write(std::byte* address, std::span<const std::byte> values) {
    if (values.empty()) return;
    const auto pinned = FakeDevice().pinned_memory().Allocate(values.size()).value();
    std::ranges::copy(values, pinned->bytes().begin());
    CHECK(stream_->Copy({address, values.size()}, pinned->bytes()).ok());
    CHECK(Drain(FakeDevice(), *stream_).ok());
  }

  std::unique_ptr<DeviceStream> stream_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::vector<std::span<const std::byte>> memory_;
  TensorSource source_{/*trainer_ranks=*/1};
};

// C-092. Nobody exports a tensor: frames are exported, and tensors are packed into them.
TEST_F(CudaIpcSyncTest, TensorsInMemoryThatCannotBeExportedGoLiveAsTheOthersDo) {
  UseCudaIpc(1);
  StartEngine(1);
  trainer_ = std::make_unique<ShardedTrainer>(/*trainer_ranks=*/1, kRows);
  Configure();
  const PooledTensors tensors(trainer_->Source());
  ASSERT_EQ(FakeDevice().Export(tensors.pooled()).status().reason(), "not_exportable");
  publisher_ = WeightPublisher::Create(options_, tensors.source()).value();

  const PublishReport report = Publish();

  ExpectLive(report);
  EXPECT_EQ(report.replicas[0].transport, TransportKind::kCudaIpc);
  publisher_.reset();  // before its tensors
}

// C-049, C-098.
TEST_F(CudaIpcSyncTest, AFailureOfAnyCallOnEitherSideLeavesTheVersionThatIsLiveAndTheNextPublishGoesLive) {
  for (const auto& [function, nth] : {std::pair("cudaLaunchKernelExC", 1),
                                      {"cudaLaunchKernelExC", 4},
                                      {"cudaMemcpyAsync", 3},
                                      {"cudaMalloc", 2},
                                      {"cudaIpcGetMemHandle", 1}}) {
    SCOPED_TRACE(fmt::format("{} {}", function, nth));
    publisher_.reset();
    StopEngine();
    UseCudaIpc(1);
    StartEngine(1);
    StartDeviceTrainer(1);
    FakeCuda::Fail(function, nth, 9);

    const PublishReport failed = Publish();

    EXPECT_FALSE(failed.AllCommitted());
    EXPECT_THAT(failed.replicas[0].status.message(), testing::HasSubstr("fakeError9"));
    EXPECT_FALSE(receiver_->status().live.has_value());
    ExpectLive(Publish());
  }
}

}  // namespace
}  // namespace bascule
