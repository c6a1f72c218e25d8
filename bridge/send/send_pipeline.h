// Stage: send (plan -> [send] -> transport)
//
// Sends the buckets of a plan that this process holds over its routes: one thread per sending rank packs bucket n+1
// while bucket n moves and the receiver verifies n-1. Credits are the only buffer. A damaged bucket is packed and sent
// again, once.
//
// Thread-safety: confined to its owner, except finished and Cancel.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/send/cast_set.h"
#include "bridge/send/send_pacer.h"
#include "bridge/transport/transport.h"

namespace bascule {

class RankSender;

class SendPipeline {
 public:
  // Borrows `packer`, the senders, one per route of the plan (null where another process sends), `pacer` and `casts`
  // (see RankSender). `on_finished` is called by the last thread to finish.
  SendPipeline(const BucketPacker& packer, std::span<const std::unique_ptr<BucketSender>> routes, SessionId session,
               Deadline deadline, SendPacer* pacer, std::function<void()> on_finished, const CastSet* casts = nullptr);
  ~SendPipeline();  // cancels and joins

  // Begins to send every bucket that the packer's source holds; those of them that are named; these once more. Wait for
  // `finished`, then call Finish.
  void SendAll();
  void Send(std::span<const std::uint32_t> buckets);
  void SendAgain(std::span<const std::uint32_t> buckets);

  bool finished() const { return running_ == 0; }
  bool failed() const { return stop_.stop_requested(); }
  // Joins the threads. OK when every bucket that was begun has been acknowledged.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
  // Aborted "fenced"           the receiver has ended this session
  // DataLoss "bucket_damaged"  damaged twice
  // DataLoss "bad_ack"         for a bucket that was not sent
  // as BoxReader::Next         the source cannot be read
  Status Finish();
  // After Finish: it failed because the source could not be read.
  bool source_failed() const { return source_failed_; }
  // Wakes every thread; Finish then fails with the first failure. The routes cannot be used again.
  void Cancel();

  // After Finish: per plan tensor the digests of the slices that count, and all bytes handed to the transports.
  std::vector<TensorDigest> Totals() const;
  std::int64_t wire_bytes() const;

 private:
  void Start(std::span<const std::uint32_t> buckets, std::uint32_t attempt);
  void RunRank(RankSender& rank, std::span<const std::uint32_t> buckets, std::uint32_t attempt) EXCLUDES(mu_);

  const BucketPacker& packer_;
  const Plan& plan_;
  const std::span<const std::unique_ptr<BucketSender>> routes_;
  const std::function<void()> on_finished_;
  std::vector<std::unique_ptr<RankSender>> ranks_;  // null for those of other processes
  std::vector<Worker> workers_;
  std::atomic<int> running_ = 0;
  std::stop_source stop_;
  std::atomic<bool> source_failed_ = false;
  Mutex mu_;
  Status failure_ GUARDED_BY(mu_);
};

}  // namespace bascule
