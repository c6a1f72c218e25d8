#include <cstring>

#include "benchmarks/bench_model.h"
#include "benchmarks/measure.h"
#include "benchmarks/sync_benchmarks.h"
#include "benchmarks/sync_engine.h"
#include "benchmarks/sync_trainer.h"
#include "bridge/transport/shm/dialer.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunSyncShmBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const RemoteEngine engine, StartSyncEngine(config, TransportKind::kShm));
  GrpcControlDialer control;
  ShmDialer transport;
  ASSIGN_OR_RETURN(const auto trainer, SyncTrainer::Create(config, engine.address, control, transport));
  ASSIGN_OR_RETURN(const auto copy, NoiseBuffer(trainer->weights().size()));
  const std::span<const std::byte> weights = trainer->weights();
  const Measured contenders[] = {
      [&] { return trainer->Publish(); },
      [&] { return SecondsOf([&] { std::memcpy(copy->bytes().data(), weights.data(), weights.size()); }); },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  return std::vector<BenchmarkRow>{
      {"sync_shm", seconds[0] * 1e3, "ms", seconds[1] * 1e3, "memcpy of the same bytes, one thread"}};
}

}  // namespace bascule
