// The processes beside this one that send parts of the same version: how a session has all ranks of a trainer send,
// when only some of them live here. A publisher of its own has no team.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "bridge/plan/planner.h"
#include "bridge/transport/transport.h"

namespace bascule {

// A connection that the team is to send over. Borrows layout and plan.
struct TeamConnection {
  std::string replica;  // address
  std::uint64_t connection = 0;
  const Layout& engine_layout;
  const PlanOptions& plan_options;
  const Plan& plan;
};

// An accepted session, and its routes.
struct TeamSessionTerms {
  SessionId session;
  std::uint64_t connection = 0;  // one the team has agreed to
  TransportEndpoint endpoint;
  std::int64_t frame_bytes = 0;
  std::int32_t credits = 0;
  Deadline deadline;
  bool on_request = false;  // nothing is sent before it is fetched
};

// What the team does in one session. Thread-safety: confined to the session's thread, but finished and failed.
class TeamSession {
 public:
  virtual ~TeamSession() = default;  // afterwards `on_change` is not called any more

  // Has every process send its buckets of the plan, or those named that are its own, once more.
  virtual void SendAll() = 0;
  virtual void SendAgain(std::span<const std::uint32_t> buckets) = 0;
  // Of a session on request, which SendAll only begins: has the processes send those buckets that are theirs; has them
  // finish.
  virtual void Fetch(std::uint32_t first_bucket, std::uint32_t bucket_count) = 0;
  virtual void EndFetching() = 0;

  // Every process has said that its buckets are acknowledged, or one has failed.
  virtual bool finished() const = 0;
  virtual bool failed() const = 0;
  // Why the first failed, with the name of its rank: what it says itself, or Unavailable "peer_lost".
  virtual Status failure() const = 0;
  // "trainer ranks 2, 5": who has not finished. Empty when finished.
  virtual std::string Unfinished() const = 0;
  // The session is over for every process, which closes its routes.
  virtual void End(const Status& why) = 0;

  // Adds what the processes digested, one total per plan tensor, and how many bytes they handed to transports.
  virtual void AddTotals(std::span<TensorDigest> totals) const = 0;
  virtual std::int64_t wire_bytes() const = 0;
};

// Thread-safety: thread-safe.
class SenderTeam {
 public:
  virtual ~SenderTeam() = default;
  // Has every process that the plan has sending make the same plan. Gives those of `endpoints` that all can use.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"; FailedPrecondition "plan_mismatch"
  virtual Result<std::vector<TransportEndpoint>> Agree(const TeamConnection& connection,
                                                       const std::vector<TransportEndpoint>& endpoints,
                                                       Deadline deadline, const std::stop_token& stop) = 0;
  // `on_change` is called from other threads, whenever `finished` may have become true.
  virtual std::unique_ptr<TeamSession> Begin(const Plan& plan, const TeamSessionTerms& terms,
                                             std::function<void()> on_change) = 0;
};

}  // namespace bascule
