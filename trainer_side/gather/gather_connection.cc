#include "trainer_side/gather/gather_connection.h"

#include <utility>

#include "bridge/group/group_session.h"
#include "bridge/send/bucket_packer.h"

namespace bascule {
namespace {

constexpr int kOwnRank = 0;
constexpr const char* kName = "trainer rank 0";  // what members know the connection by

}  // namespace

Result<std::unique_ptr<GatherConnection>> GatherConnection::Open(const GatherPlan& plan, SenderTeam& team,
                                                                 const std::vector<TransportListener*>& listeners,
                                                                 std::int32_t credits, Deadline deadline,
                                                                 const std::stop_token& stop) {
  std::unique_ptr<GatherConnection> opened(new GatherConnection(plan, team, credits));
  std::vector<TransportEndpoint> endpoints;
  for (const TransportListener* listener : listeners) endpoints.push_back(listener->endpoint());
  ASSIGN_OR_RETURN(const std::vector<TransportEndpoint> usable, team.Agree({.replica = kName,
                                                                            .connection = opened->id_,
                                                                            .engine_layout = plan.full(),
                                                                            .plan_options = plan.options(),
                                                                            .plan = plan.plan()},
                                                                           endpoints, deadline, stop));
  for (TransportListener* listener : listeners) {
    if (!usable.empty() && listener->endpoint() == usable.front()) opened->listener_ = listener;
  }
  if (opened->listener_ == nullptr) {
    return Status::Unimplemented(
        "transport_unavailable",
        fmt::format("trainer rank 0 listens in {} ways; none can be used by all other ranks", listeners.size()));
  }
  opened->listener_->Expect(opened->id_);
  return opened;
}

GatherConnection::~GatherConnection() {
  if (listener_ != nullptr) listener_->Forget(id_);
}

std::unique_ptr<TeamSession> GatherConnection::Begin(SessionId session, Deadline deadline,
                                                     std::function<void()> on_change) {
  return team_.Begin(plan_.plan(),
                     {.session = session,
                      .connection = id_,
                      .endpoint = listener_->endpoint(),
                      .frame_bytes = MaxFrameBytes(plan_.plan()),
                      .credits = credits_,
                      .deadline = deadline,
                      .on_request = true},
                     std::move(on_change));
}

Status GatherConnection::AcceptRoutes(Deadline deadline) {
  const std::vector<Route>& routes = plan_.plan().routes;
  for (std::size_t i = receivers_.size(); i < routes.size(); ++i) {
    std::unique_ptr<BucketReceiver> receiver;
    if (routes[i].sender_rank != kOwnRank) {
      Result<std::unique_ptr<BucketReceiver>> accepted = listener_->Accept(id_, routes[i], deadline);
      if (!accepted.ok()) return OfRank(routes[i].sender_rank, accepted.status());
      receiver = std::move(*accepted);
    }
    MutexLock lock(mu_);
    if (cancelled_ && receiver != nullptr) receiver->Cancel();
    receivers_.push_back(std::move(receiver));
  }
  return OkStatus();
}

void GatherConnection::Cancel() {
  listener_->Forget(id_);
  MutexLock lock(mu_);
  cancelled_ = true;
  for (const auto& receiver : receivers_) {
    if (receiver != nullptr) receiver->Cancel();
  }
}

}  // namespace bascule
