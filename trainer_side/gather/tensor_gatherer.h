// Brings full tensors together on this trainer rank for as long as a publish lasts, one window at a time: fetches it
// from the ranks that hold its slices, packs what this process holds itself, and has it ready for all who read. Readers
// that keep step share a window; one that falls behind, or reads something again, has it gathered once more. So memory
// is one window for every reader at most, whatever the model's size, beside the frames in flight (credits x frame for
// each route); these fill with the next window while this one is read.
//
// Thread-safety: thread-safe, except Finish.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/send/sender_team.h"
#include "trainer_side/gather/full_window.h"
#include "trainer_side/gather/gather_connection.h"
#include "trainer_side/gather/gather_plan.h"

namespace bascule {

class TensorGatherer {
 public:
  // Borrows all. `own` is what this process holds of the plan's trainer layout; `connection` is how the rest comes,
  // null where there is no rest.
  TensorGatherer(const GatherPlan& plan, const WeightSource& own, GatherConnection* connection, Deadline deadline,
                 Clock& clock);
  ~TensorGatherer();  // finishes

  // Waits for a window; whoever has it gives up the one before first.
  //
  // Cancelled "cancelled" (`stop`); DeadlineExceeded "deadline"; ResourceExhausted "device_memory"
  // what a rank says when it fails, with its name; Unavailable "rank_lost"; DataLoss as WindowAssembly::Take
  // DataLoss "digest_mismatch"  a tensor that is gathered again has changed
  // as BoxReader::Next          this process's own tensors cannot be read
  Result<std::shared_ptr<const FullWindow>> Take(std::int32_t window, const std::stop_token& stop) EXCLUDES(mu_);

  // Of a tensor of the plan, once gathered.
  std::optional<TensorDigest> DigestOf(std::int32_t tensor) const EXCLUDES(mu_);
  // "trainer rank 2": whose slices are waited for now; else empty.
  std::string WaitsFor() const EXCLUDES(mu_);
  // Memory that windows have taken.
  std::int64_t window_bytes() const EXCLUDES(mu_);

  // Nobody reads any more: the other ranks finish. False: the connection cannot be used again, since something failed,
  // or was on its way.
  bool Finish() EXCLUDES(mu_);

  const GatherPlan& plan() const { return plan_; }

 private:
  struct Request {
    std::int32_t window = 0;
    std::shared_ptr<const FullWindow> full;  // shared with the others who read it
  };

  // The gatherer's thread.
  void Run() EXCLUDES(mu_);
  Status GatherAll() EXCLUDES(mu_);
  // Waits for a reader. Nothing: no more come.
  std::optional<std::int32_t> NextWindow() EXCLUDES(mu_);
  Status Gather(std::int32_t window) EXCLUDES(mu_);
  Status PlaceOwn(std::uint32_t bucket, WindowAssembly& assembly);
  Status Receive(std::int32_t route, WindowAssembly& assembly) EXCLUDES(mu_);
  void WaitFor(std::optional<std::int32_t> rank) EXCLUDES(mu_);
  void Fetch(std::int32_t window);
  Result<FullWindow*> FreeWindow() EXCLUDES(mu_);
  Status NoteDigests(std::int32_t window, const std::vector<TensorDigest>& totals) EXCLUDES(mu_);
  // True when readers of other windows wait.
  bool Deliver(FullWindow& full) EXCLUDES(mu_);

  // True when nothing was under way.
  bool StopWhenIdle() EXCLUDES(mu_);
  Status EndFetching() EXCLUDES(mu_);
  void OnTeamChange() EXCLUDES(mu_);

  const GatherPlan& plan_;
  GatherConnection* const connection_;
  const Deadline deadline_;
  Clock& clock_;
  const SessionId session_ = SessionId::Mint();
  const BucketPacker packer_;
  std::vector<DigestKey> keys_;              // per tensor of the plan
  std::unique_ptr<DeviceBuffer> own_frame_;  // of the gatherer's thread, as what follows
  std::optional<std::int32_t> fetched_;      // a window that the other ranks send and nobody has received

  mutable Mutex mu_;  // Guards what is shared with readers and the team; not held while bytes or messages move.
  mutable CondVar changed_;
  std::vector<Request*> requests_ GUARDED_BY(mu_);  // of readers that wait
  std::vector<std::unique_ptr<FullWindow>> windows_ GUARDED_BY(mu_);
  std::vector<FullWindow*> free_ GUARDED_BY(mu_);
  std::shared_ptr<const FullWindow> latest_ GUARDED_BY(mu_);          // shared with readers; gives itself back to free_
  std::vector<std::optional<TensorDigest>> digests_ GUARDED_BY(mu_);  // per tensor of the plan
  std::optional<std::int32_t> waits_for_ GUARDED_BY(mu_);             // trainer rank
  Status failure_ GUARDED_BY(mu_);
  bool idle_ GUARDED_BY(mu_) = false;
  bool stopping_ GUARDED_BY(mu_) = false;

  std::unique_ptr<TeamSession> team_;  // null without a connection; set under mu_
  Worker worker_;                      // last: uses everything
};

}  // namespace bascule
