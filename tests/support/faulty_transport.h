// The fault seam of transports: a dialer or listener around any other, whose routes lose, repeat, hold back, damage,
// shorten or cut what passes, at the places that a plan names. Nothing is random at run time: a seed makes a plan.
//
//   FaultyListener listener(inner, {.frames = {{FaultKind::kDrop, /*at=*/3}}});          // frame 3 never arrives
//   FaultyDialer dialer(inner, {.frames = {{.kind = FaultKind::kCut, .at = 5}}});        // dies instead of sending 5
//   SCOPED_TRACE(ToString(plan = RandomFaultPlan(seed, 100, 0.1, {kCorrupt, kHold})));
//
//   where                      frames                                             acknowledgements
//   listener (receiving end)   kDrop kDuplicate kHold kCorrupt kTruncate kCut     kDrop kHold kCorrupt kCut
//   dialer (sending end)       kCorrupt kTruncate kCut                            kDrop kCorrupt kCut
//
// The wrapped end itself sees what the network would have done; its peer sees a peer that is slow, silent or gone. A
// frame that is dropped costs its credit, as a lost frame does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/transport/transport.h"

namespace bascule {

enum class FaultKind {
  kDrop,       // never arrives
  kDuplicate,  // arrives now, and once more behind `behind` others; the second acknowledgement goes nowhere
  kHold,       // arrives behind `behind` others
  kCorrupt,    // byte `offset` (negative: from the end) has its lowest bit flipped; an acknowledgement says kDamaged
  kTruncate,   // only the first `offset` bytes (negative: all but so many) arrive
  kCut,        // the route dies instead; both ends see "peer_lost"
};

struct Fault {
  FaultKind kind = FaultKind::kDrop;
  std::int64_t at = 0;      // the number, on its route, of the frame or acknowledgement that it hits; from 0
  std::int64_t offset = 0;  // kCorrupt, kTruncate
  int behind = 1;           // kHold, kDuplicate: let so many others pass first, ...
  Duration at_most = std::chrono::milliseconds(20);  // ... but wait no longer than this for them
};

// What happens on each route (or on `route` only). At most one fault hits a frame: the first that names it.
struct FaultPlan {
  std::vector<Fault> frames = {};
  std::vector<Fault> acks = {};
  std::optional<Route> route = std::nullopt;
};

// Each of the first `frame_count` frames meets, with `probability`, one of `kinds`; the same seed, the same plan.
FaultPlan RandomFaultPlan(std::uint64_t seed, std::int64_t frame_count, double probability,
                          const std::vector<FaultKind>& kinds);
std::string ToString(const FaultPlan& plan);  // "frames: hold@3 corrupt@7[-12]; acks: cut@9"

// Thread-safety: as the listener it wraps, which outlives it.
class FaultyListener final : public TransportListener {
 public:
  FaultyListener(TransportListener& inner, FaultPlan plan, Clock& clock = Clock::Real())
      : inner_(inner), plan_(std::move(plan)), clock_(clock) {}

  TransportEndpoint endpoint() const override { return inner_.endpoint(); }
  void Expect(std::uint64_t connection) override { inner_.Expect(connection); }
  void Forget(std::uint64_t connection) override { inner_.Forget(connection); }
  Result<std::unique_ptr<BucketReceiver>> Accept(std::uint64_t connection, Route route, Deadline deadline) override;

 private:
  TransportListener& inner_;
  const FaultPlan plan_;
  Clock& clock_;
};

// Thread-safety: as the dialer it wraps, which outlives it.
class FaultyDialer final : public TransportDialer {
 public:
  // The first `refused_dials` dials fail with "peer_unreachable".
  FaultyDialer(TransportDialer& inner, FaultPlan plan, int refused_dials = 0);

  TransportKind kind() const override { return inner_.kind(); }
  bool CanReach(const TransportEndpoint& endpoint) const override { return inner_.CanReach(endpoint); }
  Result<std::unique_ptr<BucketSender>> Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                             Deadline deadline) override;

 private:
  TransportDialer& inner_;
  const FaultPlan plan_;
  std::atomic<int> refused_dials_;
};

}  // namespace bascule
