// A trainer in a process of its own, for an engine in this one: it has the weights in its own memory of the device and
// sends them over cuda_ipc. What the two say to each other beside that are a few numbers, so no network is needed; the
// session runs where the engine is, with the trainer as its team (bridge/send/sender_team.h).
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "benchmarks/gpu/gpu_run.h"
#include "benchmarks/peer_process.h"
#include "bridge/plan/planner.h"
#include "bridge/send/sender_team.h"
#include "bridge/send/weight_source.h"

namespace bascule {

// What both sides must agree on beforehand.
struct RemoteModel {
  std::int64_t model_bytes = 0;
  std::int64_t bucket_bytes = 0;
};
PlanOptions PlanOptionsOf(const RemoteModel& model);

// The body of the trainer's process: waits for a RemoteModel, and sends when it is told to, until the link ends.
Status RunRemoteTrainer(PeerLink& link);
// The other end: the trainer makes ready, which takes as long as filling its memory does.
Status BeginRemoteTrainer(PeerLink& link, const RemoteModel& model);

// As this process sees the trainer's weights: their layout.
class RemoteWeights final : public WeightSource {
 public:
  explicit RemoteWeights(Layout layout) : layout_(std::move(layout)) {}
  const Layout& layout() const override { return layout_; }
  bool Holds(int /*sender_rank*/) const override { return false; }
  const std::byte* Base(int /*sender_rank*/, int /*tensor*/) const override { return nullptr; }

 private:
  const Layout layout_;
};

class RemoteTeam final : public SenderTeam {
 public:
  explicit RemoteTeam(PeerLink& link) : link_(link) {}
  Result<std::vector<TransportEndpoint>> Agree(const TeamConnection& connection,
                                               const std::vector<TransportEndpoint>& endpoints, Deadline deadline,
                                               const std::stop_token& stop) override;
  std::unique_ptr<TeamSession> Begin(const Plan& plan, const TeamSessionTerms& terms,
                                     std::function<void()> on_change) override;

 private:
  PeerLink& link_;
};

}  // namespace bascule
