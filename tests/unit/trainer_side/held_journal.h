// A journal in memory that holds a publish still between "all are ready" and the decision, or refuses to write it down.
//
// Thread-safety: thread-safe.
#pragma once

#include "base/clock.h"
#include "base/mutex.h"
#include "trainer_side/commit_journal.h"

namespace bascule {

class HeldJournal final : public CommitJournal {
 public:
  // From now on Decide waits until Release.
  void Hold() {
    MutexLock lock(mu_);
    held_ = true;
  }
  void Release() {
    MutexLock lock(mu_);
    held_ = false;
    changed_.NotifyAll();
  }
  bool WaitUntilAllAreReady() {
    const Deadline deadline = Deadline::After(Clock::Real(), std::chrono::seconds(30));
    MutexLock lock(mu_);
    while (waiting_ == 0 && !deadline.Passed(Clock::Real())) Clock::Real().WaitUntil(changed_, mu_, deadline.point());
    return waiting_ > 0;
  }
  void RefuseWith(Status why) {
    MutexLock lock(mu_);
    refusal_ = std::move(why);
  }
  // As after a crash: what was decided, and what is known of it.
  void Set(CommitDecision decision) {
    MutexLock lock(mu_);
    last_ = std::move(decision);
  }

  std::optional<CommitDecision> last() const override {
    MutexLock lock(mu_);
    return last_;
  }
  Status Decide(const WeightVersion& version, const std::vector<std::string>& replicas) override {
    MutexLock lock(mu_);
    ++waiting_;
    changed_.NotifyAll();
    while (held_) Clock::Real().WaitUntil(changed_, mu_, Clock::Real().Now() + std::chrono::seconds(1));
    RETURN_IF_ERROR(refusal_);
    last_ = CommitDecision{.version = version, .replicas = replicas, .live = {}, .taken_back = false};
    return OkStatus();
  }
  Status NoteLive(const std::string& address) override {
    MutexLock lock(mu_);
    if (last_) last_->live.insert(address);
    return OkStatus();
  }
  Status NoteTakenBack(bool taken_back) override {
    MutexLock lock(mu_);
    if (last_) last_->taken_back = taken_back;
    return OkStatus();
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool held_ GUARDED_BY(mu_) = false;
  int waiting_ GUARDED_BY(mu_) = 0;
  Status refusal_ GUARDED_BY(mu_);
  std::optional<CommitDecision> last_ GUARDED_BY(mu_);
};

}  // namespace bascule
