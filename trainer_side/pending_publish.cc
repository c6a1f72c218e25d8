#include "trainer_side/pending_publish.h"

#include <utility>

namespace bascule {

Status PendingPublish::WaitPacked(Deadline deadline) {
  MutexLock lock(mu_);
  while (!packed_ms_) {
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", "the tensors are still being read");
    clock_.WaitUntil(changed_, mu_, deadline.point());
  }
  return OkStatus();
}

Result<PublishReport> PendingPublish::WaitCommitted(Deadline deadline) {
  MutexLock lock(mu_);
  while (!report_) {
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", "the publish is still under way");
    clock_.WaitUntil(changed_, mu_, deadline.point());
  }
  return *report_;
}

void PendingPublish::SetPacked() {
  MutexLock lock(mu_);
  SetPackedLocked();
}

void PendingPublish::ExpectSealed(int replicas) {
  MutexLock lock(mu_);
  unsealed_ = replicas;
  if (unsealed_ == 0) SetPackedLocked();
}

void PendingPublish::CountSealed() {
  MutexLock lock(mu_);
  if (--unsealed_ == 0) SetPackedLocked();
}

double PendingPublish::packed_ms() const {
  MutexLock lock(mu_);
  return packed_ms_.value_or(0);
}

void PendingPublish::Finish(PublishReport report) {
  MutexLock lock(mu_);
  report_ = std::move(report);
  changed_.NotifyAll();
}

void PendingPublish::SetPackedLocked() {
  if (packed_ms_) return;
  packed_ms_ = MsOf(clock_.Now() - began_);
  changed_.NotifyAll();
}

}  // namespace bascule
