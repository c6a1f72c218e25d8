#include <cstring>

#include "benchmarks/bench_model.h"
#include "benchmarks/grpc/bare_stream.h"
#include "benchmarks/measure.h"
#include "benchmarks/sync_benchmarks.h"
#include "benchmarks/sync_engine.h"
#include "benchmarks/sync_trainer.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/shm/dialer.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunSyncShmBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const RemoteServer engine, StartSyncEngine(config, TransportKind::kShm));
  GrpcControlDialer control;
  ShmDialer transport;
  ASSIGN_OR_RETURN(const auto trainer, SyncTrainer::Create(config, engine.address, control, transport));
  const std::span<const std::byte> weights = trainer->weights();
  ASSIGN_OR_RETURN(const auto copy, NoiseBuffer(weights.size()));
  const Measured contenders[] = {
      [&] { return trainer->Publish(); },
      [&] { return SecondsOf([&] { std::memcpy(copy->bytes().data(), weights.data(), weights.size()); }); },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  return std::vector<BenchmarkRow>{
      {"sync_shm", seconds[0] * 1e3, "ms", seconds[1] * 1e3, "memcpy of the same bytes, one thread"}};
}

Result<std::vector<BenchmarkRow>> RunSyncGrpcBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const RemoteServer engine, StartSyncEngine(config, TransportKind::kGrpc));
  ASSIGN_OR_RETURN(const RemoteServer bare_server, StartServer([](PeerLink& link) -> Status {
                     ASSIGN_OR_RETURN(const auto server, BareServer::Start());
                     RETURN_IF_ERROR(link.Send(server->address()));
                     link.AwaitEnd();
                     return OkStatus();
                   }));
  GrpcControlDialer control;
  GrpcDialer transport;
  ASSIGN_OR_RETURN(const auto trainer, SyncTrainer::Create(config, engine.address, control, transport));
  ASSIGN_OR_RETURN(const auto bare, BareStream::Open(bare_server.address));
  const std::span<const std::byte> weights = trainer->weights();
  const auto message_bytes = static_cast<std::size_t>(WeightPublisherOptions{}.bucket_bytes);
  Status bare_status;
  const Measured contenders[] = {
      [&] { return trainer->Publish(); },
      [&]() -> Result<double> {
        const double seconds = SecondsOf([&] { bare_status = bare->Send(weights, message_bytes); });
        RETURN_IF_ERROR(bare_status);
        return seconds;
      },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  return std::vector<BenchmarkRow>{{"sync_grpc", GigabytesPerSecond(weights.size(), seconds[0]), "GB/s",
                                    GigabytesPerSecond(weights.size(), seconds[1]),
                                    "bare gRPC stream of protobuf bytes, messages of the same size"}};
}

}  // namespace bascule
