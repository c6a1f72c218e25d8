// Where the slices of the other trainer ranks arrive: routes from every one of them to this process, made once and used
// by gather after gather, as a connection to a replica is by sessions.
//
// Thread-safety: confined to one thread at a time, except Cancel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/send/sender_team.h"
#include "bridge/transport/transport.h"
#include "trainer_side/gather/gather_plan.h"

namespace bascule {

class GatherConnection {
 public:
  // Has the team make the same plan, and finds a listener that all of it can reach. `plan`, `team` and `listeners` are
  // borrowed.
  //
  // as SenderTeam::Agree; Unimplemented "transport_unavailable"
  static Result<std::unique_ptr<GatherConnection>> Open(const GatherPlan& plan, SenderTeam& team,
                                                        const std::vector<TransportListener*>& listeners,
                                                        std::int32_t credits, Deadline deadline,
                                                        const std::stop_token& stop);
  ~GatherConnection();

  // A session on request over these routes.
  std::unique_ptr<TeamSession> Begin(SessionId session, Deadline deadline, std::function<void()> on_change);
  // Waits until every rank has called, unless that has been done: after TeamSession::SendAll.
  //
  // DeadlineExceeded "deadline"; Cancelled "cancelled"; names the rank
  Status AcceptRoutes(Deadline deadline) EXCLUDES(mu_);
  BucketReceiver& receiver(std::int32_t route) { return *receivers_[static_cast<std::size_t>(route)]; }
  // Every wait for a route or a frame ends, now and from now on.
  void Cancel() EXCLUDES(mu_);

 private:
  GatherConnection(const GatherPlan& plan, SenderTeam& team, std::int32_t credits)
      : plan_(plan), team_(team), credits_(credits) {}

  const GatherPlan& plan_;
  SenderTeam& team_;
  const std::int32_t credits_;
  const std::uint64_t id_ = SessionId::Mint().value;
  TransportListener* listener_ = nullptr;
  Mutex mu_;  // Guards what Cancel has to reach.
  bool cancelled_ GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<BucketReceiver>> receivers_;  // per route of the plan; null: of this process
};

}  // namespace bascule
