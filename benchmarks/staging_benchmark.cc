#include <unistd.h>

#include <thread>

#include "benchmarks/bench_model.h"
#include "benchmarks/decode_benchmarks.h"
#include "benchmarks/decode_load.h"
#include "benchmarks/measure.h"
#include "benchmarks/sync_engine.h"
#include "benchmarks/sync_trainer.h"
#include "bridge/transport/shm/dialer.h"

namespace bascule {
namespace {

constexpr int kRequests = 4;
constexpr Duration kUndisturbed = std::chrono::seconds(3);
constexpr Duration kSettling = std::chrono::seconds(3);
constexpr Duration kPatience = std::chrono::minutes(2);
constexpr int kTrainerNice = 19;  // its machine is another one, and this one's cores are the engine's

struct Decoded {
  double tokens_per_second = 0;
  double gap_p99_ms = 0;
};

// The engine's process: decodes all the time, and tells how on each message.
Status ServeDecoding(const ModelConfig& config, PeerLink& link) {
  ASSIGN_OR_RETURN(const auto engine, SyncEngine::Create(config, TransportKind::kShm, SyncEngine::Decoding::kYes));
  RETURN_IF_ERROR(link.Send(engine->address()));
  RETURN_IF_ERROR(link.Receive(Deadline::After(Clock::Real(), kPatience)).status());  // a first version is live
  DecodeLoad load(*engine->decode(), kRequests);
  RETURN_IF_ERROR(link.Send("decoding"));
  while (true) {
    const Result<std::string> asked = link.Receive(Deadline::After(Clock::Real(), kPatience));
    if (!asked.ok()) return OkStatus();  // the benchmark is over
    DecodeLoad::Tokens tokens = load.Take();
    RETURN_IF_ERROR(load.status());
    const double p99 = tokens.gap_ms.empty() ? 0 : QuantileOf(std::move(tokens.gap_ms), 0.99);
    RETURN_IF_ERROR(link.Send(fmt::format("{} {}", tokens.PerSecond(), p99)));
  }
}

class StagingBenchmark {
 public:
  static Result<std::unique_ptr<StagingBenchmark>> Start(const ModelConfig& config) {
    auto benchmark = std::unique_ptr<StagingBenchmark>(new StagingBenchmark());
    ASSIGN_OR_RETURN(benchmark->server_, StartServer([&](PeerLink& link) { return ServeDecoding(config, link); }));
    if (nice(kTrainerNice) == -1) return Status::Internal("nice", "the trainer's process cannot give way");
    ASSIGN_OR_RETURN(benchmark->trainer_, SyncTrainer::Create(config, benchmark->server_.address, benchmark->control_,
                                                              benchmark->transport_));
    RETURN_IF_ERROR(benchmark->trainer_->Publish().status());
    RETURN_IF_ERROR(benchmark->Ask("live").status());
    return benchmark;
  }

  // What was decoded while `work` ran.
  Result<Decoded> Meanwhile(const std::function<Status()>& work) {
    RETURN_IF_ERROR(Ask("begin").status());
    RETURN_IF_ERROR(work());
    ASSIGN_OR_RETURN(const std::string answer, Ask("end"));
    Decoded decoded;
    if (std::sscanf(answer.c_str(), "%lf %lf", &decoded.tokens_per_second, &decoded.gap_p99_ms) != 2) {
      return Status::Internal("bad_answer", answer);
    }
    return decoded;
  }
  Status Stage() { return trainer_->PublishUntilSealed(); }
  // The version of the last Stage is live, and what it made necessary has been recomputed.
  Status Settle() {
    RETURN_IF_ERROR(trainer_->AwaitFlip());
    std::this_thread::sleep_for(kSettling);
    return OkStatus();
  }

 private:
  StagingBenchmark() = default;
  Result<std::string> Ask(std::string_view what) {
    RETURN_IF_ERROR(server_.process->link().Send(what));
    return server_.process->link().Receive(Deadline::After(Clock::Real(), kPatience));
  }

  RemoteServer server_;
  GrpcControlDialer control_;
  ShmDialer transport_;
  std::unique_ptr<SyncTrainer> trainer_;
};

}  // namespace

Result<std::vector<BenchmarkRow>> RunStagingBenchmark(const BenchmarkScale& scale) {
  ASSIGN_OR_RETURN(const auto benchmark, StagingBenchmark::Start(ModelOfAbout(scale.model_bytes)));
  std::vector<double> alone_rate, alone_gap, staging_rate, staging_gap;
  for (int round = 0; round < std::max(1, scale.rounds / 2); ++round) {
    ASSIGN_OR_RETURN(const Decoded alone, benchmark->Meanwhile([] {
      std::this_thread::sleep_for(kUndisturbed);
      return OkStatus();
    }));
    ASSIGN_OR_RETURN(const Decoded staging, benchmark->Meanwhile([&] { return benchmark->Stage(); }));
    RETURN_IF_ERROR(benchmark->Settle());
    alone_rate.push_back(alone.tokens_per_second);
    alone_gap.push_back(alone.gap_p99_ms);
    staging_rate.push_back(staging.tokens_per_second);
    staging_gap.push_back(staging.gap_p99_ms);
  }
  return std::vector<BenchmarkRow>{{"decode_while_staging", QuantileOf(std::move(staging_rate), 0.5), "tokens/s",
                                    QuantileOf(std::move(alone_rate), 0.5), "the same requests undisturbed"},
                                   {"token_gap_p99_while_staging", QuantileOf(std::move(staging_gap), 0.5), "ms",
                                    QuantileOf(std::move(alone_gap), 0.5), "the same requests undisturbed"}};
}

}  // namespace bascule
