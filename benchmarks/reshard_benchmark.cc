#include <algorithm>
#include <charconv>

#include "benchmarks/bench_model.h"
#include "benchmarks/measure.h"
#include "benchmarks/reshard_rank.h"
#include "benchmarks/sync_benchmarks.h"
#include "benchmarks/sync_engine.h"
#include "benchmarks/sync_trainer.h"

namespace bascule {
namespace {

constexpr int kTrainerRanks = 4;
constexpr int kEngineRanks = 2;
constexpr Duration kPatience = std::chrono::minutes(4);
constexpr const char* kGroup = "reshard";

// A member: told where its leader is, then of every publish; answers with the memory in MB that the publish took at its
// peak beyond what the rank holds.
Status RunMember(int rank, const ModelConfig& config, PeerLink& link) {
  ASSIGN_OR_RETURN(const std::string leader, link.Receive(Deadline::After(Clock::Real(), kPatience)));
  ASSIGN_OR_RETURN(
      const auto member,
      ReshardRank::Create(config, {.rank = rank, .world_size = kTrainerRanks, .leader = leader, .name = kGroup}, ""));
  while (true) {
    const Result<std::string> order = link.Receive(Deadline::After(Clock::Real(), kPatience));
    if (!order.ok()) return OkStatus();  // the benchmark is over
    ForgetPeakMemory();
    const double before = ProcessMemory("VmRSS:");
    RETURN_IF_ERROR(member->Publish().status());
    RETURN_IF_ERROR(link.Send(fmt::format("{:.3f}", ProcessMemory("VmHWM:") - before)));
  }
}

class ShardedTrainerProcesses {
 public:
  Status Start(const ModelConfig& config) {
    for (int rank = 1; rank < kTrainerRanks; ++rank) {
      ASSIGN_OR_RETURN(auto process,
                       PeerProcess::Start([&config, rank](PeerLink& link) { return RunMember(rank, config, link); }));
      members_.push_back(std::move(process));
    }
    return OkStatus();
  }

  Status Lead(const ModelConfig& config, const std::string& replica) {
    ASSIGN_OR_RETURN(
        leader_,
        ReshardRank::Create(config, {.rank = 0, .world_size = kTrainerRanks, .leader = "127.0.0.1:0", .name = kGroup},
                            replica));
    for (const auto& member : members_) RETURN_IF_ERROR(member->link().Send(leader_->group_address()));
    return OkStatus();
  }

  // As SyncTrainer::Publish.
  Result<double> Publish() {
    for (const auto& member : members_) RETURN_IF_ERROR(member->link().Send("publish"));
    ASSIGN_OR_RETURN(const PublishReport report, leader_->Publish());
    bytes_ = report.bytes;
    for (const auto& member : members_) {
      ASSIGN_OR_RETURN(const std::string answer, member->link().Receive(Deadline::After(Clock::Real(), kPatience)));
      double extra = 0;
      std::from_chars(answer.data(), answer.data() + answer.size(), extra);
      extra_memory_ = std::max(extra_memory_, extra);
    }
    return report.packed_ms / 1e3;
  }

  std::int64_t bytes() const { return bytes_; }
  double extra_memory() const { return extra_memory_; }  // of any member in any publish, the first included

 private:
  std::vector<std::unique_ptr<PeerProcess>> members_;
  std::unique_ptr<ReshardRank> leader_;
  std::int64_t bytes_ = 0;
  double extra_memory_ = 0;
};

}  // namespace

Result<std::vector<BenchmarkRow>> RunReshardShmBenchmark(const BenchmarkScale& scale) {
  const ModelConfig config = ModelOfAbout(scale.model_bytes);
  ASSIGN_OR_RETURN(const RemoteServer engine, StartSyncEngine(config, TransportKind::kShm, kEngineRanks));
  ASSIGN_OR_RETURN(const RemoteServer whole_engine, StartSyncEngine(config, TransportKind::kShm));
  ShardedTrainerProcesses sharded;
  RETURN_IF_ERROR(sharded.Start(config));
  GrpcControlDialer control;
  ShmDialer transport;
  ASSIGN_OR_RETURN(const auto whole, SyncTrainer::Create(config, whole_engine.address, control, transport));
  RETURN_IF_ERROR(sharded.Lead(config, engine.address));
  const Measured contenders[] = {
      [&] { return sharded.Publish(); },
      [&] { return whole->Publish(); },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  const WeightPublisherOptions defaults;
  const double credits_mb = static_cast<double>(kEngineRanks * defaults.credits * defaults.bucket_bytes) / 1e6;
  return std::vector<BenchmarkRow>{
      {"reshard_shm", seconds[0] * 1e3, "ms", seconds[1] * 1e3, "one trainer rank to one engine rank"},
      {"reshard_bytes_sent", static_cast<double>(sharded.bytes()) / 1e6, "MB",
       static_cast<double>(whole->weights().size()) / 1e6, "the model"},
      {"reshard_extra_memory", sharded.extra_memory(), "MB", credits_mb, "routes x credits x bucket bytes"}};
}

}  // namespace bascule
