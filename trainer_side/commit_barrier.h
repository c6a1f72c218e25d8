// Policy `all`: no replica flips before all are ready. Each session of a publish takes part with a vote of its own; the
// last to get ready has the decision written down, and only then does any of them hear of it. One that fails before
// makes it an abort for the others, by name. Once a decision is made nothing changes it: a replica that is lost then
// has missed a commit.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/send/flip_decider.h"

namespace bascule {

struct CommitHooks {
  // Called when everybody is ready and before anybody is told: makes the decision durable. If it fails nobody flips.
  std::function<Status(const WeightVersion&)> write_down;
  // Called when the decision is an abort, with its reason: stops the sessions that still send.
  std::function<void(const Status&)> abort;
};

class CommitBarrier {
 public:
  // A decision over the replicas at these addresses. `clock` is borrowed.
  CommitBarrier(std::vector<std::string> replicas, CommitHooks hooks, Clock& clock);
  ~CommitBarrier();

  // The part of replica number `replica`; lives as long as the barrier.
  FlipDecider& vote(std::size_t replica);

  // The session of this replica is over without a flip. Of no consequence once a decision is made.
  void Fail(std::size_t replica, const Status& why) EXCLUDES(mu_);

  std::optional<Status> decision() const EXCLUDES(mu_);

 private:
  class Vote;

  void Ready(std::size_t replica, const WeightVersion& version, std::function<void()> wake) EXCLUDES(mu_);
  std::optional<Status> Withdraw(std::size_t replica, const Status& why) EXCLUDES(mu_);
  void Abort(const Status& why) EXCLUDES(mu_);
  std::string NotReady() const REQUIRES(mu_);  // names of those that are not
  // Tells everybody. The caller has set `deciding_`.
  void Decide(const Status& decision) EXCLUDES(mu_);

  const std::vector<std::string> replicas_;
  const CommitHooks hooks_;
  Clock& clock_;
  std::vector<std::unique_ptr<Vote>> votes_;

  mutable Mutex mu_;  // Never held while a decision is written down or told.
  CondVar told_;
  std::vector<std::function<void()>> wake_ GUARDED_BY(mu_);  // by replica; empty: not ready, or waits no longer
  std::vector<bool> ready_ GUARDED_BY(mu_);
  WeightVersion version_ GUARDED_BY(mu_);  // of the first that was ready
  bool deciding_ GUARDED_BY(mu_) = false;  // from here on nothing changes what the decision will be
  bool everybody_told_ GUARDED_BY(mu_) = false;
  std::optional<Status> decision_ GUARDED_BY(mu_);
};

}  // namespace bascule
