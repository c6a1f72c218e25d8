#include <algorithm>

#include "benchmarks/bench_model.h"
#include "benchmarks/gloo_broadcast.h"
#include "benchmarks/measure.h"
#include "benchmarks/sync_benchmarks.h"
#include "benchmarks/sync_engine.h"
#include "benchmarks/sync_trainer.h"
#include "benchmarks/temp_directory.h"
#include "bridge/transport/shm/dialer.h"
#include "device/host/host_memory.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::string_view kNextRound = "round";

std::vector<std::int64_t> TensorBytes(const ModelConfig& config) {
  std::vector<std::int64_t> bytes;
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) bytes.push_back(tensor.Bytes());
  return bytes;
}

// Rank 1, in a process of its own: takes one broadcast for each message.
Status TakeRounds(PeerLink& link, const std::string& directory, const std::vector<std::int64_t>& tensor_bytes) {
  std::int64_t total = 0;
  for (const std::int64_t bytes : tensor_bytes) total += bytes;
  ASSIGN_OR_RETURN(const auto place, HostMemory().Allocate(static_cast<std::size_t>(total)));
  ASSIGN_OR_RETURN(
      const auto staging,
      HostMemory().Allocate(static_cast<std::size_t>(*std::max_element(tensor_bytes.begin(), tensor_bytes.end()))));
  ASSIGN_OR_RETURN(const auto rank, GlooRank::Join(1, directory));
  while (link.Receive(Deadline::After(Clock::Real(), std::chrono::hours(1))).ok()) {
    RETURN_IF_ERROR(rank->TakeBroadcast(place->bytes(), staging->bytes(), tensor_bytes));
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunSyncGlooBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  const std::vector<std::int64_t> tensor_bytes = TensorBytes(config);
  const TempDirectory directory;
  ASSIGN_OR_RETURN(const RemoteServer engine, StartSyncEngine(config, TransportKind::kShm));
  ASSIGN_OR_RETURN(const auto other, PeerProcess::Start([&](PeerLink& link) {
                     return TakeRounds(link, directory.path(), tensor_bytes);
                   }));
  GrpcControlDialer control;
  ShmDialer transport;
  ASSIGN_OR_RETURN(const auto trainer, SyncTrainer::Create(config, engine.address, control, transport));
  ASSIGN_OR_RETURN(const auto rank, GlooRank::Join(0, directory.path()));
  Status broadcast;
  const Measured contenders[] = {
      [&] { return trainer->Publish(); },
      [&]() -> Result<double> {
        RETURN_IF_ERROR(other->link().Send(kNextRound));
        const double seconds = SecondsOf([&] { broadcast = rank->Broadcast(trainer->weights(), tensor_bytes); });
        RETURN_IF_ERROR(broadcast);
        return seconds;
      },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  const std::size_t bytes = trainer->weights().size();
  return std::vector<BenchmarkRow>{{"sync_gloo", GigabytesPerSecond(bytes, seconds[0]), "GB/s",
                                    GigabytesPerSecond(bytes, seconds[1]),
                                    "gloo broadcast and copy into place, two processes"}};
}

}  // namespace bascule
