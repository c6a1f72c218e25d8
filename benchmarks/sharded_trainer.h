// A sharded trainer of several processes, whose rank 0 leads in this one.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "benchmarks/peer_process.h"
#include "benchmarks/reshard_rank.h"
#include "model/model_config.h"

namespace bascule {

// Memory that a publish took on a rank beyond what the rank holds, in MB: at its peak, and what of it stayed, which is
// shared with another process (frames), the process's own (plan, heap, stacks), or of files (code that ran first now).
struct ExtraMemory {
  double peak = 0;
  double frames = 0;
  double own = 0;
  double code = 0;
};

class ShardedTrainer {
 public:
  ShardedTrainer(const ModelConfig& config, int ranks, Sending sending);  // `config` is borrowed

  // Starts the other ranks: before this process has threads.
  Status Start();
  // What ReshardRank::Create can fail with.
  Status Lead(const std::string& replica);

  // Publishes the next version and waits until it is live. The seconds from the Publish call until the engine had
  // proven every byte and rank 0 knew.
  //
  // What became of the replica, when it did not commit
  Result<double> Publish();

  // Of the last publish.
  const PublishReport& report() const { return report_; }
  // Of the other rank that took most: in the first publish, and at the peak of any later one.
  const ExtraMemory& first() const { return first_; }
  double later_peak() const { return later_peak_; }
  // Of rank 0, at the peak of any publish but the first.
  double leader_later_peak() const { return leader_later_peak_; }

 private:
  Status RunMember(int rank, PeerLink& link) const;

  const ModelConfig& config_;
  const int ranks_;
  const Sending sending_;
  std::vector<std::unique_ptr<PeerProcess>> members_;
  std::unique_ptr<ReshardRank> leader_;
  PublishReport report_;
  int publishes_ = 0;
  ExtraMemory first_;
  double later_peak_ = 0;
  double leader_later_peak_ = 0;
};

}  // namespace bascule
