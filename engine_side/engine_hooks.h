// Stage: flip (verify -> [flip] -> decode)
//
// What an engine gives to WeightReceiver so that it can flip: a safe point between two decode steps, and its caches.
// Our scheduler (engine_side/decode) is one implementation; any other engine brings its own.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/session/messages.h"

namespace bascule {

struct SafePoint {
  std::uint64_t next_step = 0;  // the decode step that comes after
  Duration stall{};             // set after the critical section: time decode stood still; zero when idle
};

// Thread-safety: thread-safe.
class EngineHooks {
 public:
  virtual ~EngineHooks() = default;
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
