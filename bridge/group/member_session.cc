#include "bridge/group/member_session.h"

#include <utility>

namespace bascule {

MemberSession::MemberSession(MemberConnection& connection, const WeightSource& source, const GroupSend& terms,
                             TransportDialer& dialer, SendPacer* pacer, Clock& clock, std::function<void()> on_news)
    : connection_(connection),
      terms_(terms),
      deadline_(Deadline::After(clock, terms.time_left)),
      dialer_(dialer),
      on_news_(std::move(on_news)),
      packer_(*connection.plan, source),
      pacer_(pacer),
      worker_("member-session", [this](std::stop_token) { Run(std::nullopt); }) {}

MemberSession::~MemberSession() {
  if (!idle()) Cancel();
  worker_.Join();
}

SessionMessage MemberSession::TakeNews() {
  worker_.Join();
  has_news_ = false;
  if (!status_.ok()) return Abort{terms_.session, status_};
  return GroupSent{.session = terms_.session, .totals = pipeline_->Totals(), .wire_bytes = pipeline_->wire_bytes()};
}

Status MemberSession::SendAgain(const std::vector<std::uint32_t>& buckets) {
  if (!idle() || !status_.ok()) {
    return Status::InvalidArgument("unexpected_message", "Missing before GroupSent");
  }
  const Plan& plan = packer_.plan();
  for (const std::uint32_t bucket : buckets) {
    if (bucket < plan.buckets.size() &&
        packer_.source().Holds(plan.routes[static_cast<std::size_t>(plan.buckets[bucket].route)].sender_rank)) {
      continue;
    }
    return Status::DataLoss("bad_message", fmt::format("bucket={} is not of this trainer rank", bucket));
  }
  worker_ = Worker("member-session", [this, buckets](std::stop_token) { Run(buckets); });
  return OkStatus();
}

void MemberSession::Cancel() {
  cancelled_ = true;
  MutexLock lock(mu_);
  if (pipeline_) pipeline_->Cancel();
}

void MemberSession::Run(const std::optional<std::vector<std::uint32_t>>& again) {
  status_ = Send(again);
  has_news_ = true;
  on_news_();
}

Status MemberSession::Send(const std::optional<std::vector<std::uint32_t>>& again) {
  if (!again) {
    RETURN_IF_ERROR(OpenRoutes());
    MutexLock lock(mu_);
    pipeline_.emplace(packer_, connection_.routes, terms_.session, deadline_, pacer_, [] {});
  }
  if (cancelled_) return Status::Cancelled("cancelled");
  again ? pipeline_->SendAgain(*again) : pipeline_->SendAll();
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
    ASSIGN_OR_RETURN(auto sender, dialer_.Dial(terms_.endpoint,
                                               {.connection = terms_.connection,
                                                .route = route,
                                                .frame_bytes = terms_.frame_bytes,
                                                .credits = terms_.credits},
                                               deadline_));
    connection_.routes.push_back(std::move(sender));
  }
  return OkStatus();
}

}  // namespace bascule
