#include "bridge/group/member_session.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bascule {
namespace {

constexpr std::size_t kFetchedMax = 16;

}  // namespace

MemberSession::MemberSession(MemberConnection& connection, const WeightSource& source, const GroupSend& terms,
                             TransportDialer& dialer, Duration connect_timeout, SendPacer* pacer, Clock& clock,
                             std::function<void()> on_news)
    : connection_(connection),
      terms_(terms),
      deadline_(Deadline::After(clock, terms.time_left)),
      dialer_(dialer),
      connect_timeout_(connect_timeout),
      clock_(clock),
      on_news_(std::move(on_news)),
      packer_(*connection.plan, source),
      pacer_(pacer) {
  Start([this] {
    RETURN_IF_ERROR(Open());
    return terms_.on_request ? OkStatus() : SendAll();
  });
}

MemberSession::~MemberSession() {
  if (!idle()) Cancel();
  worker_.Join();
}

void MemberSession::Start(std::function<Status()> work) {
  worker_ = Worker("member-session", [this, work = std::move(work)](std::stop_token) {
    status_ = cancelled_ ? Status::Cancelled("cancelled") : work();
    has_news_ = true;
    on_news_();
  });
}

std::optional<SessionMessage> MemberSession::TakeNews() {
  worker_.Join();
  has_news_ = false;
  if (!status_.ok()) return Abort{terms_.session, status_};
  if (!terms_.on_request || all_fetched_) return Sent();
  if (!fetched_.empty()) StartFetched();
  return std::nullopt;
}

SessionMessage MemberSession::Sent() const {
  return GroupSent{.session = terms_.session, .totals = pipeline_->Totals(), .wire_bytes = pipeline_->wire_bytes()};
}

Status MemberSession::SendAgain(const std::vector<std::uint32_t>& buckets) {
  if (terms_.on_request) return Status::InvalidArgument("unexpected_message", "Missing of a session on request");
  if (!idle() || !status_.ok()) return OkStatus();  // it came twice: the leader asks when it has heard of the rest
  const Plan& plan = packer_.plan();
  for (const std::uint32_t bucket : buckets) {
    if (bucket < plan.buckets.size() &&
        packer_.source().Holds(plan.routes[static_cast<std::size_t>(plan.buckets[bucket].route)].sender_rank)) {
      continue;
    }
    return Status::DataLoss("bad_message", fmt::format("bucket={} is not of this trainer rank", bucket));
  }
  Start([this, buckets] {
    pipeline_->SendAgain(buckets);
    return pipeline_->Finish();
  });
  return OkStatus();
}

Status MemberSession::Fetch(const GroupFetch& fetch) {
  if (!terms_.on_request)
    return Status::InvalidArgument("unexpected_message", "GroupFetch of a session that sends all");
  const std::size_t planned = packer_.plan().buckets.size();
  if (fetch.first_bucket > planned || fetch.bucket_count > planned - fetch.first_bucket) {
    return Status::DataLoss("bad_message", fmt::format("GroupFetch of {} buckets from {} on, the plan has {}",
                                                       fetch.bucket_count, fetch.first_bucket, planned));
  }
  if (fetched_.size() >= kFetchedMax) return Status::DataLoss("bad_message", "GroupFetch before others have come");
  fetched_.push_back(fetch);
  if (idle() && status_.ok()) StartFetched();
  return OkStatus();
}

void MemberSession::StartFetched() {
  all_fetched_ = fetched_.front().bucket_count == 0;
  std::vector<std::uint32_t> buckets(fetched_.front().bucket_count);
  std::iota(buckets.begin(), buckets.end(), fetched_.front().first_bucket);
  fetched_.pop_front();
  Start([this, buckets = std::move(buckets)] {
    pipeline_->Send(buckets);
    return pipeline_->Finish();
  });
}

void MemberSession::Cancel() {
  cancelled_ = true;
  MutexLock lock(mu_);
  if (pipeline_) pipeline_->Cancel();
}

Status MemberSession::Open() {
  RETURN_IF_ERROR(OpenRoutes());
  MutexLock lock(mu_);
  pipeline_.emplace(
      packer_, connection_.routes, terms_.session, deadline_, pacer_, [] {}, &connection_.casts);
  return OkStatus();
}

Status MemberSession::SendAll() {
  if (cancelled_) return Status::Cancelled("cancelled");
  pipeline_->SendAll();
  return pipeline_->Finish();
}

Status MemberSession::OpenRoutes() {
  const Plan& plan = packer_.plan();
  if (connection_.routes.size() == plan.routes.size()) return OkStatus();
  for (const Route& route : plan.routes) {
    if (!packer_.source().Holds(route.sender_rank)) {
      connection_.routes.push_back(nullptr);
      continue;
    }
    if (cancelled_) return Status::Cancelled("cancelled");
    const Deadline soon = std::min(deadline_, Deadline::After(clock_, connect_timeout_));
    ASSIGN_OR_RETURN(auto sender, dialer_.Dial(terms_.endpoint,
                                               {.connection = terms_.connection,
                                                .route = route,
                                                .frame_bytes = terms_.frame_bytes,
                                                .credits = terms_.credits},
                                               soon));
    connection_.routes.push_back(std::move(sender));
  }
  ASSIGN_OR_RETURN(connection_.casts, CastSet::Make(plan, connection_.routes, dialer_));
  return OkStatus();
}

}  // namespace bascule
