// The gathers of a publisher, one a publish: the plan and the routes of the other ranks stay from one to the next.
//
// Thread-safety: confined to the publish thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/send/plan_cache.h"
#include "bridge/send/sender_team.h"
#include "bridge/transport/transport.h"
#include "trainer_side/gather/gather_connection.h"
#include "trainer_side/gather/gather_plan.h"
#include "trainer_side/gather/tensor_gatherer.h"

namespace bascule {

struct GatheringOptions {
  SenderTeam* team = nullptr;                 // borrowed; null: all trainer ranks are in this process
  std::vector<TransportListener*> listeners;  // borrowed; where the team's routes are taken, best first
  std::int32_t credits = 4;
  Clock* clock = &Clock::Real();
};

class Gathering {
 public:
  // `plans` is borrowed.
  Gathering(GatheringOptions options, PlanCache& plans) : options_(std::move(options)), plans_(plans) {}

  // The same plan everywhere and a way for its routes, unless they stand: `trainer` is what all ranks hold, `wire` the
  // tensors as engines take them, `options` those of the plan towards the engines. Fails as GatherPlan::Make and
  // GatherConnection::Open.
  Status Open(const Layout& trainer, const std::vector<TensorSpec>& wire, const PlanOptions& options, Deadline deadline,
              const std::stop_token& stop);
  // The team has changed, or something has failed: its routes are of no use any more.
  void Close();

  // While open: gathers from `own`, which is this process's part, and the team, until Finish.
  TensorGatherer& Begin(const WeightSource& own, Deadline deadline);
  // Memory that windows took.
  std::int64_t Finish();

 private:
  const GatheringOptions options_;
  PlanCache& plans_;
  std::optional<GatherPlan> plan_;
  std::unique_ptr<GatherConnection> connection_;
  std::optional<TensorGatherer> gatherer_;
};

}  // namespace bascule
