// One publish under way: what the handle waits for and the replicas' threads report to.
//
// Thread-safety: thread-safe.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

class PendingPublish final : public PublishHandle {
 public:
  explicit PendingPublish(Clock& clock) : clock_(clock), began_(clock.Now()) {}

  Status WaitPacked(Deadline deadline) override EXCLUDES(mu_);
  Result<PublishReport> WaitCommitted(Deadline deadline) override EXCLUDES(mu_);

  // Nothing of the trainer's is read any more, or will be. The first call counts.
  void SetPacked() EXCLUDES(mu_);
  // So many replicas read the trainer's memory; packed comes when each has called CountSealed.
  void ExpectSealed(int replicas) EXCLUDES(mu_);
  void CountSealed() EXCLUDES(mu_);
  double packed_ms() const EXCLUDES(mu_);
  void Finish(PublishReport report) EXCLUDES(mu_);

 private:
  void SetPackedLocked() REQUIRES(mu_);

  Clock& clock_;
  const TimePoint began_;
  mutable Mutex mu_;
  CondVar changed_;
  int unsealed_ GUARDED_BY(mu_) = 0;
  std::optional<double> packed_ms_ GUARDED_BY(mu_);
  std::optional<PublishReport> report_ GUARDED_BY(mu_);
};

}  // namespace bascule
