// Stage: flip (verify -> [flip] -> decode)
//
// What an engine gives to WeightReceiver so that it can flip: a safe point between two decode steps, its caches, and
// the tensors that it makes itself. Our scheduler (engine_side/decode) is one implementation; any other engine brings
// its own: docs/embedding.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/session/messages.h"

namespace bascule {

struct SafePoint {
  std::uint64_t next_step = 0;  // the decode step that comes after
  Duration stall{};             // set after the critical section: time decode stood still; zero when idle
};

// A version that is staged and proven, and not live yet. Where slots lie on devices, its memory is for the device of
// the rank, and what Finalize enqueues there is done when it returns.
struct StagedWeights {
  WeightVersion version;
  // Local tensor `tensor` of the engine's layout, as WeightLease::Tensor shows it once the version is live.
  std::function<std::span<const std::byte>(int engine_rank, int tensor)> tensor;
  // Tensor `index` of WeightReceiverOptions::derived: zeros, dense, 64-byte aligned.
  std::function<std::span<std::byte>(int engine_rank, int index)> derived;
};

// Thread-safety: thread-safe.
class EngineHooks {
 public:
  virtual ~EngineHooks() = default;
  // Makes the derived tensors of a version, all of them from its received ones and from nothing else, so that equal
  // versions have equal bytes. Called once for each version, when every byte that it reads is proven and before it can
  // flip, while the live version decodes. A failure ends the session and changes nothing live. Returns by the deadline.
  // An engine without derived tensors may still look at the version here, and refuse it.
  virtual Status Finalize(const StagedWeights& /*staged*/, Deadline /*deadline*/) { return OkStatus(); }
  // Calls `critical` once, while no decode step runs on any rank of the replica and before step
  // max(at_step, the next one), and returns after it. `critical` takes O(ranks + requests), and the time of a copy of
  // the weights where flips are in place. Where nothing decodes it is called at once.
  //
  // DeadlineExceeded "deadline"  no safe point came in time; `critical` was not and will not be called
  // Cancelled "engine_stopping"
  virtual Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                           Deadline deadline) = 0;
  // Asked inside `critical`: do requests wait for the next step, so that the time until then is a stall?
  virtual bool Decoding() const { return true; }
  // Called inside `critical`, after the slots changed: applies the KV policy to every running request and drops what
  // was cached under another version. Frees pages after the critical section.
  virtual KvReport InvalidateKv(const WeightVersion& live) = 0;
};

// For engines that decode nothing (tests, a cache daemon): every moment is a safe point.
class IdleHooks final : public EngineHooks {
 public:
  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override;
  bool Decoding() const override { return false; }
  KvReport InvalidateKv(const WeightVersion& live) override;

 private:
  Mutex mu_;
};

}  // namespace bascule
