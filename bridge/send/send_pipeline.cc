#include "bridge/send/send_pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "bridge/send/rank_sender.h"

namespace bascule {

SendPipeline::SendPipeline(const BucketPacker& packer, std::span<const std::unique_ptr<BucketSender>> routes,
                           SessionId session, Deadline deadline, SendPacer* pacer, std::function<void()> on_finished,
                           const CastSet* casts)
    : packer_(packer), plan_(packer.plan()), routes_(routes), on_finished_(std::move(on_finished)) {
  std::int32_t ranks = 0;
  for (const Route& route : plan_.routes) ranks = std::max(ranks, route.sender_rank + 1);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(packer.source().Holds(rank) ? std::make_unique<RankSender>(packer, routes, session, deadline,
                                                                                pacer, stop_.get_token(), casts)
                                                 : nullptr);
  }
}

SendPipeline::~SendPipeline() {
  if (!finished()) Cancel();
  for (Worker& worker : workers_) worker.Join();
}

void SendPipeline::SendAll() {
  std::vector<std::uint32_t> buckets(plan_.buckets.size());
  std::iota(buckets.begin(), buckets.end(), 0U);
  Send(buckets);
}

void SendPipeline::Send(std::span<const std::uint32_t> buckets) { Start(buckets, /*attempt=*/0); }

void SendPipeline::SendAgain(std::span<const std::uint32_t> buckets) { Start(buckets, /*attempt=*/1); }

void SendPipeline::Start(std::span<const std::uint32_t> buckets, std::uint32_t attempt) {
  std::vector<std::vector<std::uint32_t>> buckets_of_rank(ranks_.size());
  for (const std::uint32_t bucket : buckets) {
    const Route& route = plan_.routes[static_cast<std::size_t>(plan_.buckets[bucket].route)];
    if (packer_.source().Holds(route.sender_rank)) {
      buckets_of_rank[static_cast<std::size_t>(route.sender_rank)].push_back(bucket);
    }
  }
  running_ = static_cast<int>(
      std::count_if(buckets_of_rank.begin(), buckets_of_rank.end(), [](const auto& share) { return !share.empty(); }));
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (buckets_of_rank[rank].empty()) continue;
    workers_.emplace_back(fmt::format("send-{}", rank),
                          [this, rank, attempt, share = std::move(buckets_of_rank[rank])](std::stop_token) {
                            RunRank(*ranks_[rank], share, attempt);
                          });
  }
}

void SendPipeline::RunRank(RankSender& rank, std::span<const std::uint32_t> buckets, std::uint32_t attempt) {
  if (Status status = rank.Run(buckets, attempt); !status.ok()) {
    {
      MutexLock lock(mu_);
      if (failure_.ok()) {
        failure_ = std::move(status);
        source_failed_ = rank.source_failed();
      }
    }
    Cancel();
  }
  if (--running_ == 0) on_finished_();
}

Status SendPipeline::Finish() {
  for (Worker& worker : workers_) worker.Join();
  workers_.clear();
  MutexLock lock(mu_);
  return failure_;
}

void SendPipeline::Cancel() {
  stop_.request_stop();
  packer_.source().StopReading();
  for (const auto& sender : routes_) {
    if (sender != nullptr) sender->Cancel();
  }
}

std::vector<TensorDigest> SendPipeline::Totals() const {
  std::vector<TensorDigest> totals(plan_.tensors.size());
  for (const auto& rank : ranks_) {
    if (rank == nullptr) continue;
    for (std::size_t tensor = 0; tensor < totals.size(); ++tensor) totals[tensor] += rank->totals()[tensor];
  }
  return totals;
}

std::int64_t SendPipeline::wire_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& rank : ranks_) {
    if (rank != nullptr) bytes += rank->wire_bytes();
  }
  return bytes;
}

}  // namespace bascule
