#include <fmt/format.h>

#include <algorithm>

#include "benchmarks/bench_model.h"
#include "benchmarks/measure.h"
#include "benchmarks/sharded_trainer.h"
#include "benchmarks/sync_benchmarks.h"
#include "benchmarks/sync_engine.h"
#include "benchmarks/sync_trainer.h"
#include "bridge/transport/shm/dialer.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr int kTrainerRanks = 4;
constexpr int kEngineRanks = 2;

// Turns of a sharded publish to `sharded_engine` and of a plain one, of one rank to `whole_engine`: the median seconds
// of each.
Result<std::vector<double>> BesideAPlainSync(const ModelConfig& config, const std::string& sharded_engine,
                                             const std::string& whole_engine, ShardedTrainer& sharded, int rounds) {
  RETURN_IF_ERROR(sharded.Start());
  GrpcControlDialer control;
  ShmDialer transport;
  ASSIGN_OR_RETURN(const auto whole, SyncTrainer::Create(config, whole_engine, control, transport));
  RETURN_IF_ERROR(sharded.Lead(sharded_engine));
  const Measured contenders[] = {
      [&] { return sharded.Publish(); },
      [&] { return whole->Publish(); },
  };
  return MedianSeconds(contenders, rounds);
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunReshardShmBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const RemoteServer engine, StartSyncEngine(config, TransportKind::kShm, kEngineRanks));
  ASSIGN_OR_RETURN(const RemoteServer whole_engine, StartSyncEngine(config, TransportKind::kShm));
  ShardedTrainer sharded(config, kTrainerRanks, Sending::kOwnSlices);
  ASSIGN_OR_RETURN(const std::vector<double> seconds,
                   BesideAPlainSync(config, engine.address, whole_engine.address, sharded, scale.rounds));

  std::int64_t model = 0;
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) model += tensor.Bytes();
  const double model_mb = static_cast<double>(model) / 1e6;
  const WeightPublisherOptions defaults;
  const double credits_mb = static_cast<double>(kEngineRanks * defaults.credits * defaults.bucket_bytes) / 1e6;
  return std::vector<BenchmarkRow>{
      {"reshard_shm", seconds[0] * 1e3, "ms", seconds[1] * 1e3, "one trainer rank to one engine rank"},
      {"reshard_bytes_sent", static_cast<double>(sharded.report().bytes) / 1e6, "MB", model_mb, "the model"},
      {"reshard_extra_frames", sharded.first().frames, "MB", credits_mb, "routes x credits x bucket bytes"},
      {"reshard_extra_own", sharded.first().own, "MB", credits_mb, "the same; plan, heap and stacks"},
      {"reshard_extra_code", sharded.first().code, "MB", credits_mb, "the same; code that runs for the first time"},
      {"reshard_extra_later", sharded.later_peak(), "MB", credits_mb, "the same; in any publish but the first"}};
}

// Beside the reshard, for engines that take full tensors only.
Result<std::vector<BenchmarkRow>> RunGatherShmBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const RemoteServer engine, StartSyncEngine(config, TransportKind::kShm));
  ASSIGN_OR_RETURN(const RemoteServer whole_engine, StartSyncEngine(config, TransportKind::kShm));
  ShardedTrainer gathering(config, kTrainerRanks, Sending::kGather);
  ASSIGN_OR_RETURN(const std::vector<double> seconds,
                   BesideAPlainSync(config, engine.address, whole_engine.address, gathering, scale.rounds));

  std::int64_t largest = 0;
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) largest = std::max(largest, tensor.Bytes());
  const double largest_mb = static_cast<double>(largest) / 1e6;
  return std::vector<BenchmarkRow>{
      {"gather_shm", seconds[0] * 1e3, "ms", seconds[1] * 1e3, "one trainer rank to one engine rank"},
      {"gather_windows", static_cast<double>(gathering.report().gather_window_bytes) / 1e6, "MB", largest_mb,
       "the largest tensor"},
      {"gather_extra_later", gathering.leader_later_peak(), "MB", largest_mb,
       "the same; rank 0, in any publish but the first"}};
}

}  // namespace bascule
