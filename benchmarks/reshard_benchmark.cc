#include <algorithm>
#include <sstream>

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

// Memory that a publish took on a member beyond what the rank holds, in MB: at its peak, and what of it stayed, which
// is shared with the engine (frames), the process's own (plan, heap, stacks), or of files (code that ran first now).
struct ExtraMemory {
  double peak = 0;
  double frames = 0;
  double own = 0;
  double code = 0;
};

ExtraMemory MemoryNow() {
  return {.peak = ProcessMemory("VmHWM:"),
          .frames = ProcessMemory("RssShmem:"),
          .own = ProcessMemory("RssAnon:"),
          .code = ProcessMemory("RssFile:")};
}

std::string Since(const ExtraMemory& before) {
  const ExtraMemory now = MemoryNow();
  return fmt::format("{:.3f} {:.3f} {:.3f} {:.3f}", now.peak - before.frames - before.own - before.code,
                     now.frames - before.frames, now.own - before.own, now.code - before.code);
}

ExtraMemory Parse(const std::string& text) {
  ExtraMemory extra;
  std::istringstream(text) >> extra.peak >> extra.frames >> extra.own >> extra.code;
  return extra;
}

// A member: told where its leader is, then of every publish; answers with the memory that it took.
Status RunMember(int rank, const ModelConfig& config, PeerLink& link) {
  ASSIGN_OR_RETURN(const std::string leader, link.Receive(Deadline::After(Clock::Real(), kPatience)));
  ASSIGN_OR_RETURN(
      const auto member,
      ReshardRank::Create(config, {.rank = rank, .world_size = kTrainerRanks, .leader = leader, .name = kGroup}, ""));
  while (true) {
    const Result<std::string> order = link.Receive(Deadline::After(Clock::Real(), kPatience));
    if (!order.ok()) return OkStatus();  // the benchmark is over
    ForgetPeakMemory();
    const ExtraMemory before = MemoryNow();
    RETURN_IF_ERROR(member->Publish().status());
    RETURN_IF_ERROR(link.Send(Since(before)));
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
      const ExtraMemory extra = Parse(answer);
      if (publishes_ == 0 && extra.peak > first_.peak) first_ = extra;
      if (publishes_ > 0) later_peak_ = std::max(later_peak_, extra.peak);
    }
    ++publishes_;
    return report.packed_ms / 1e3;
  }

  std::int64_t bytes() const { return bytes_; }
  // Of the member that took most: in the first publish, and at the peak of any later one.
  const ExtraMemory& first() const { return first_; }
  double later_peak() const { return later_peak_; }

 private:
  std::vector<std::unique_ptr<PeerProcess>> members_;
  std::unique_ptr<ReshardRank> leader_;
  std::int64_t bytes_ = 0;
  int publishes_ = 0;
  ExtraMemory first_;
  double later_peak_ = 0;
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
      {"reshard_extra_frames", sharded.first().frames, "MB", credits_mb, "routes x credits x bucket bytes"},
      {"reshard_extra_own", sharded.first().own, "MB", credits_mb, "the same; plan, heap and stacks"},
      {"reshard_extra_code", sharded.first().code, "MB", credits_mb, "the same; code that runs for the first time"},
      {"reshard_extra_later", sharded.later_peak(), "MB", credits_mb, "the same; in any publish but the first"}};
}

}  // namespace bascule
