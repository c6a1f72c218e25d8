#include "trainer_side/commit_barrier.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace bascule {
namespace {

// Who waits for a decision to be told waits for a write to a file and for nobody else.
constexpr Duration kLookAgain = std::chrono::seconds(1);

}  // namespace

class CommitBarrier::Vote final : public FlipDecider {
 public:
  Vote(CommitBarrier& barrier, std::size_t replica) : barrier_(barrier), replica_(replica) {}

  void Ready(const WeightVersion& version, std::function<void()> wake) override {
    barrier_.Ready(replica_, version, std::move(wake));
  }
  std::optional<Status> decision() const override { return barrier_.decision(); }
  std::optional<Status> Withdraw(const Status& why) override { return barrier_.Withdraw(replica_, why); }

 private:
  CommitBarrier& barrier_;
  const std::size_t replica_;
};

CommitBarrier::CommitBarrier(std::vector<std::string> replicas, CommitHooks hooks, Clock& clock)
    : replicas_(std::move(replicas)),
      hooks_(std::move(hooks)),
      clock_(clock),
      wake_(replicas_.size()),
      ready_(replicas_.size()) {
  for (std::size_t replica = 0; replica < replicas_.size(); ++replica) {
    votes_.push_back(std::make_unique<Vote>(*this, replica));
  }
}

CommitBarrier::~CommitBarrier() = default;

FlipDecider& CommitBarrier::vote(std::size_t replica) { return *votes_.at(replica); }

void CommitBarrier::Ready(std::size_t replica, const WeightVersion& version, std::function<void()> wake) {
  LogInfo("fleet_ready", "replica={} version={}", replicas_[replica], version.ToString());
  WeightVersion first;
  {
    MutexLock lock(mu_);
    if (decision_) return;
    wake_[replica] = std::move(wake);
    if (deciding_) return;
    if (version_.run.empty()) version_ = version;
    ready_[replica] = true;
    if (version == version_ && std::find(ready_.begin(), ready_.end(), false) != ready_.end()) return;
    deciding_ = true;
    first = version_;
  }
  if (version == first) return Decide(hooks_.write_down(version));
  // The trainer has changed its tensors between one session and the other.
  Decide(Status::DataLoss("digest_mismatch", fmt::format("replica {} got digest {}, another {}", replicas_[replica],
                                                         version.digest.ToHex(), first.digest.ToHex())));
}

void CommitBarrier::Fail(std::size_t replica, const Status& why) {
  Abort(
      Status::Aborted("replica_not_ready", fmt::format("{}: {}: {}", replicas_[replica], why.reason(), why.message())));
}

void CommitBarrier::Abort(const Status& why) {
  {
    MutexLock lock(mu_);
    if (deciding_) return;
    deciding_ = true;
  }
  Decide(why);
}

std::string CommitBarrier::NotReady() const {
  std::string names;
  for (std::size_t replica = 0; replica < replicas_.size(); ++replica) {
    if (!ready_[replica]) names += (names.empty() ? "" : ", ") + replicas_[replica];
  }
  return names;
}

std::optional<Status> CommitBarrier::Withdraw(std::size_t replica, const Status& why) {
  std::string late;
  {
    MutexLock lock(mu_);
    while (deciding_ && !everybody_told_) clock_.WaitUntil(told_, mu_, clock_.Now() + kLookAgain);
    if (deciding_) return decision_;
    wake_[replica] = {};
    if (why.code() == StatusCode::kDeadlineExceeded) late = NotReady();
  }
  // Its own time is over because others were late.
  late.empty() ? Fail(replica, why) : Abort(Status::Aborted("replica_not_ready", late + " not ready in time"));
  return decision();
}

std::optional<Status> CommitBarrier::decision() const {
  MutexLock lock(mu_);
  return decision_;
}

void CommitBarrier::Decide(const Status& decision) {
  LogInfo("fleet_decision", "replicas={} flip={} why=\"{}\"", replicas_.size(), decision.ok(), decision.ToString());
  std::vector<std::function<void()>> wake;
  {
    MutexLock lock(mu_);
    decision_ = decision;
    wake.swap(wake_);
  }
  if (!decision.ok()) hooks_.abort(decision);
  for (const auto& one : wake) {
    if (one) one();
  }
  MutexLock lock(mu_);
  everybody_told_ = true;
  told_.NotifyAll();
}

}  // namespace bascule
