#include <algorithm>

#include "benchmarks/gpu/remote_trainer.h"
#include "benchmarks/gpu/rows.h"
#include "benchmarks/gpu/stepping_engine.h"
#include "bridge/send/publish_session.h"
#include "bridge/transport/cuda_ipc/dialer.h"

namespace bascule {
namespace {

constexpr std::int32_t kCredits = 8;
constexpr std::int64_t kBucketBytes = std::int64_t{64} << 20;
constexpr std::int64_t kLargeBucketBytes = std::int64_t{256} << 20;
constexpr int kDecodingSyncs = 3;  // flips in each round that steps run

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

// Publishes version after version of the trainer's weights to the engine.
class Publisher {
 public:
  Publisher(GpuRun& run, GpuEngine& engine, PeerLink& trainer, const RemoteModel& model)
      : team_(trainer),
        dialer_(run.device()),
        weights_(PlainLayout(ModelTensors(model.model_bytes))),
        replica_({.address = GpuEngine::kAddress,
                  .control = &engine.control(),
                  .transports = {&dialer_},
                  .publisher = InstanceId::Mint(),
                  .plan = PlanOptionsOf(model),
                  .credits = kCredits,
                  .team = &team_},
                 plans_) {}

  struct Sync {
    double verified_ms = 0;  // from the offer until the engine has proven every byte
    double stall_us = 0;
  };
  Result<Sync> Publish() {
    RETURN_IF_ERROR(replica_.Open(weights_.layout(), Soon(), {}));
    Sync sync;
    const TimePoint began = Clock::Real().Now();
    const auto on_sealed = [&] {
      sync.verified_ms = std::chrono::duration<double, std::milli>(Clock::Real().Now() - began).count();
    };
    VersionOffer offer{.run = "bench", .number = ++number_};
    const SendReport report = PublishSession(replica_, weights_, std::move(offer), Soon(), {}, on_sealed).Run();
    RETURN_IF_ERROR(report.status);
    sync.stall_us = report.flip.flip_stall_us;
    return sync;
  }

 private:
  RemoteTeam team_;
  CudaIpcDialer dialer_;
  const RemoteWeights weights_;
  PlanCache plans_;
  ReplicaConnection replica_;
  std::uint64_t number_ = 0;
};

Result<std::vector<Publisher::Sync>> Syncs(Publisher& publisher, int count) {
  std::vector<Publisher::Sync> syncs;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const Publisher::Sync sync, publisher.Publish());
    syncs.push_back(sync);
  }
  return syncs;
}

double MedianMs(const std::vector<Publisher::Sync>& syncs) {
  std::vector<double> times;
  for (const Publisher::Sync& sync : syncs) times.push_back(sync.verified_ms);
  return Quantile(times, 0.5);
}

}  // namespace

Status SyncRows(GpuRun& run, PeerLink& trainer, bool large) {
  const std::int64_t bytes = run.scale().model_bytes, most = large ? kLargeBucketBytes : kBucketBytes;
  const RemoteModel model{.model_bytes = bytes,
                          .bucket_bytes = std::clamp(bytes / (large ? 8 : 32), std::int64_t{4096}, most)};
  RETURN_IF_ERROR(BeginRemoteTrainer(trainer, model));
  ASSIGN_OR_RETURN(const double bandwidth, run.CopyBandwidth());
  const double copy_ms = 2 * static_cast<double>(bytes) / bandwidth * 1e3;
  ASSIGN_OR_RETURN(const auto engine, GpuEngine::Create(run, FlipMode::kShadow));
  Publisher publisher(run, *engine, trainer, model);
  RETURN_IF_ERROR(publisher.Publish().status());  // connects, plans, makes the frames
  ASSIGN_OR_RETURN(const auto alone, Syncs(publisher, run.scale().rounds));
  run.Row(large ? "gpu_sync_cuda_ipc_large_buckets" : "gpu_sync_cuda_ipc", MedianMs(alone), "ms", copy_ms,
          "a device copy of the same bytes");
  if (large) return OkStatus();

  engine->StartSteps();
  ASSIGN_OR_RETURN(const auto decoding, Syncs(publisher, run.scale().rounds * kDecodingSyncs));
  RETURN_IF_ERROR(engine->steps().failure());
  run.Row("gpu_sync_cuda_ipc_while_decoding", MedianMs(decoding), "ms", copy_ms, "a device copy of the same bytes");
  const auto worst = std::ranges::max_element(decoding, {}, &Publisher::Sync::stall_us);
  run.Row("gpu_sync_flip_stall_max", worst->stall_us, "us", 1000, "1 ms promised");
  return OkStatus();
}

}  // namespace bascule
