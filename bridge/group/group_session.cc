#include "bridge/group/group_session.h"

#include <set>
#include <utility>

namespace bascule {
namespace {

constexpr int kLeaderRank = 0;

}  // namespace

std::vector<int> SendingMembers(const Plan& plan) {
  std::set<int> ranks;
  for (const Route& route : plan.routes) ranks.insert(route.sender_rank);
  ranks.erase(kLeaderRank);
  return {ranks.begin(), ranks.end()};
}

Status OfRank(int rank, const Status& why) { return why.WithContext(fmt::format("trainer rank {}", rank)); }

GroupSession::GroupSession(const Plan& plan, const TeamSessionTerms& terms, std::uint64_t round, Clock& clock,
                           SendTo send_to, std::function<void()> on_change, std::function<void()> on_over)
    : plan_(plan),
      terms_(terms),
      round_(round),
      clock_(clock),
      send_to_(std::move(send_to)),
      on_change_(std::move(on_change)),
      on_over_(std::move(on_over)) {
  MutexLock lock(mu_);
  for (const int rank : SendingMembers(plan)) shares_[rank] = {};
}

void GroupSession::SendAll() {
  const GroupSend order{.session = terms_.session,
                        .connection = terms_.connection,
                        .endpoint = terms_.endpoint,
                        .frame_bytes = terms_.frame_bytes,
                        .credits = terms_.credits,
                        .time_left = terms_.deadline.Left(clock_),
                        .on_request = terms_.on_request,
                        .round = round_};
  const std::vector<int> members = SendingMembers(plan_);
  if (!terms_.on_request) running_ = static_cast<int>(members.size());
  for (const int rank : members) terms_.on_request ? Tell(rank, order) : Ask(rank, order);
}

void GroupSession::SendAgain(std::span<const std::uint32_t> buckets) {
  std::map<int, std::vector<std::uint32_t>> of_rank;
  for (const std::uint32_t bucket : buckets) {
    const int rank = plan_.routes[static_cast<std::size_t>(plan_.buckets[bucket].route)].sender_rank;
    if (rank != kLeaderRank) of_rank[rank].push_back(bucket);
  }
  running_ = static_cast<int>(of_rank.size());
  for (auto& [rank, own] : of_rank) Ask(rank, Missing{.session = terms_.session, .buckets = std::move(own)});
}

void GroupSession::Fetch(std::uint32_t first_bucket, std::uint32_t bucket_count) {
  std::set<int> ranks;
  for (const Bucket& bucket : std::span(plan_.buckets).subspan(first_bucket, bucket_count)) {
    ranks.insert(plan_.routes[static_cast<std::size_t>(bucket.route)].sender_rank);
  }
  ranks.erase(kLeaderRank);
  for (const int rank : ranks) Tell(rank, GroupFetch{terms_.session, first_bucket, bucket_count});
}

void GroupSession::EndFetching() {
  const std::vector<int> members = SendingMembers(plan_);
  running_ = static_cast<int>(members.size());
  for (const int rank : members) Ask(rank, GroupFetch{.session = terms_.session});
}

void GroupSession::Tell(int rank, const SessionMessage& message) {
  if (const Status sent = send_to_(rank, message); !sent.ok()) OnFailed(rank, sent);
}

void GroupSession::Ask(int rank, const SessionMessage& message) {
  {
    MutexLock lock(mu_);
    shares_.at(rank).running = true;
  }
  Tell(rank, message);
}

Status GroupSession::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

std::string GroupSession::Unfinished() const {
  std::string ranks;
  MutexLock lock(mu_);
  for (const auto& [rank, share] : shares_) {
    if (share.running) ranks += fmt::format("{}{}", ranks.empty() ? "trainer ranks " : ", ", rank);
  }
  return ranks;
}

void GroupSession::End(const Status& why) {
  for (const int rank : SendingMembers(plan_)) {
    static_cast<void>(send_to_(rank, Abort{terms_.session, why}));  // one that is gone needs no telling
  }
}

void GroupSession::AddTotals(std::span<TensorDigest> totals) const {
  MutexLock lock(mu_);
  for (const auto& [rank, share] : shares_) {
    for (std::size_t t = 0; t < share.totals.size(); ++t) totals[t] += share.totals[t];
  }
}

std::int64_t GroupSession::wire_bytes() const {
  std::int64_t bytes = 0;
  MutexLock lock(mu_);
  for (const auto& [rank, share] : shares_) bytes += share.wire_bytes;
  return bytes;
}

void GroupSession::OnSent(int rank, const GroupSent& sent) {
  if (sent.totals.size() != plan_.tensors.size()) {
    return OnFailed(rank, Status::DataLoss("bad_message", fmt::format("totals of {} tensors, the plan has {}",
                                                                      sent.totals.size(), plan_.tensors.size())));
  }
  {
    MutexLock lock(mu_);
    const auto share = shares_.find(rank);
    if (share == shares_.end() || !share->second.running) return;
    share->second = {.running = false, .totals = sent.totals, .wire_bytes = sent.wire_bytes};
  }
  --running_;
  on_change_();
}

void GroupSession::OnFailed(int rank, const Status& why) {
  {
    MutexLock lock(mu_);
    if (!shares_.contains(rank)) return;
    if (failure_.ok()) failure_ = OfRank(rank, why);
  }
  failed_ = true;
  on_change_();
}

}  // namespace bascule
