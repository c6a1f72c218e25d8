// One session as the leader of a trainer group sees it: what it has asked of each member, and what they have answered.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/send/sender_team.h"
#include "bridge/session/messages.h"

namespace bascule {

// The members that `plan` has sending: every sending rank but the leader's, in order.
std::vector<int> SendingMembers(const Plan& plan);

// A failure with the name of the trainer rank that it comes from.
Status OfRank(int rank, const Status& why);

// Thread-safety: On... from any thread; the rest as TeamSession says.
class GroupSession final : public TeamSession {
 public:
  // How the session reaches a member. Fails as ControlChannel::Send, or with "rank_lost".
  using SendTo = std::function<Status(int rank, const SessionMessage& message)>;

  // `on_over` is called by the destructor, before anything is gone.
  GroupSession(const Plan& plan, const TeamSessionTerms& terms, std::uint64_t round, Clock& clock, SendTo send_to,
               std::function<void()> on_change, std::function<void()> on_over);
  ~GroupSession() override { on_over_(); }

  void SendAll() override EXCLUDES(mu_);
  void SendAgain(std::span<const std::uint32_t> buckets) override EXCLUDES(mu_);
  void Fetch(std::uint32_t first_bucket, std::uint32_t bucket_count) override EXCLUDES(mu_);
  void EndFetching() override EXCLUDES(mu_);
  bool finished() const override { return running_ == 0 || failed_; }
  bool failed() const override { return failed_; }
  Status failure() const override EXCLUDES(mu_);
  std::string Unfinished() const override EXCLUDES(mu_);
  void End(const Status& why) override;
  void AddTotals(std::span<TensorDigest> totals) const override EXCLUDES(mu_);
  std::int64_t wire_bytes() const override EXCLUDES(mu_);

  SessionId id() const { return terms_.session; }
  // What a member said, or that it is gone. Of a member that takes no part nothing is kept.
  void OnSent(int rank, const GroupSent& sent) EXCLUDES(mu_);
  void OnFailed(int rank, const Status& why) EXCLUDES(mu_);

 private:
  struct Share {
    bool running = false;
    std::vector<TensorDigest> totals;
    std::int64_t wire_bytes = 0;
  };
  // Sends what needs no answer, or what has one.
  void Tell(int rank, const SessionMessage& message) EXCLUDES(mu_);
  void Ask(int rank, const SessionMessage& message) EXCLUDES(mu_);

  const Plan& plan_;
  const TeamSessionTerms terms_;
  const std::uint64_t round_;
  Clock& clock_;
  const SendTo send_to_;
  const std::function<void()> on_change_;
  const std::function<void()> on_over_;
  std::atomic<int> running_ = 0;
  std::atomic<bool> failed_ = false;
  mutable Mutex mu_;  // Not held while a message is sent.
  std::map<int, Share> shares_ GUARDED_BY(mu_);
  Status failure_ GUARDED_BY(mu_);
};

}  // namespace bascule
