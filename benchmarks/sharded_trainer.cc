#include "benchmarks/sharded_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "benchmarks/measure.h"

namespace bascule {
namespace {

constexpr Duration kPatience = std::chrono::minutes(4);

ExtraMemory MemoryNow() {
  return {.peak = ProcessMemory("VmHWM:"),
          .frames = ProcessMemory("RssShmem:"),
          .own = ProcessMemory("RssAnon:"),
          .code = ProcessMemory("RssFile:")};
}

ExtraMemory Since(const ExtraMemory& before) {
  const ExtraMemory now = MemoryNow();
  return {.peak = now.peak - before.frames - before.own - before.code,
          .frames = now.frames - before.frames,
          .own = now.own - before.own,
          .code = now.code - before.code};
}

std::string Text(const ExtraMemory& extra) {
  return fmt::format("{:.3f} {:.3f} {:.3f} {:.3f}", extra.peak, extra.frames, extra.own, extra.code);
}

ExtraMemory Parse(const std::string& text) {
  ExtraMemory extra;
  std::istringstream(text) >> extra.peak >> extra.frames >> extra.own >> extra.code;
  return extra;
}

}  // namespace

ShardedTrainer::ShardedTrainer(const ModelConfig& config, int ranks, Sending sending)
    : config_(config), ranks_(ranks), sending_(sending) {}

// Told where its leader is, then of every publish; answers with the memory that it took.
Status ShardedTrainer::RunMember(int rank, PeerLink& link) const {
  ASSIGN_OR_RETURN(const std::string leader, link.Receive(Deadline::After(Clock::Real(), kPatience)));
  ASSIGN_OR_RETURN(const auto member,
                   ReshardRank::Create(config_, {.rank = rank, .world_size = ranks_, .leader = leader}, sending_, ""));
  while (true) {
    const Result<std::string> order = link.Receive(Deadline::After(Clock::Real(), kPatience));
    if (!order.ok()) return OkStatus();  // the benchmark is over
    ForgetPeakMemory();
    const ExtraMemory before = MemoryNow();
    RETURN_IF_ERROR(member->Publish().status());
    RETURN_IF_ERROR(link.Send(Text(Since(before))));
  }
}

Status ShardedTrainer::Start() {
  for (int rank = 1; rank < ranks_; ++rank) {
    ASSIGN_OR_RETURN(auto process, PeerProcess::Start([this, rank](PeerLink& link) { return RunMember(rank, link); }));
    members_.push_back(std::move(process));
  }
  return OkStatus();
}

Status ShardedTrainer::Lead(const std::string& replica) {
  ASSIGN_OR_RETURN(leader_,
                   ReshardRank::Create(config_, {.world_size = ranks_, .leader = "127.0.0.1:0"}, sending_, replica));
  for (const auto& member : members_) RETURN_IF_ERROR(member->link().Send(leader_->group_address()));
  return OkStatus();
}

Result<double> ShardedTrainer::Publish() {
  ForgetPeakMemory();
  const ExtraMemory before = MemoryNow();
  for (const auto& member : members_) RETURN_IF_ERROR(member->link().Send("publish"));
  ASSIGN_OR_RETURN(report_, leader_->Publish());
  if (publishes_ > 0) leader_later_peak_ = std::max(leader_later_peak_, Since(before).peak);
  for (const auto& member : members_) {
    ASSIGN_OR_RETURN(const std::string answer, member->link().Receive(Deadline::After(Clock::Real(), kPatience)));
    const ExtraMemory extra = Parse(answer);
    if (publishes_ == 0 && extra.peak > first_.peak) first_ = extra;
    if (publishes_ > 0) later_peak_ = std::max(later_peak_, extra.peak);
  }
  ++publishes_;
  return report_.packed_ms / 1e3;
}

}  // namespace bascule
