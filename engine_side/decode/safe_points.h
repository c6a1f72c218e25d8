// Who waits for the gap between two decode steps, and for how long decoding stands still there: a plain state machine.
// The engine runs the critical sections, one at a time and never while a step computes, and wakes who waits.
//
// A stall is the time by which the gap grew: from the beginning of the critical section to where the next step
// computes, less what beginning a step takes otherwise, and at least as long as the critical section.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "base/clock.h"
#include "engine_side/engine_hooks.h"

namespace bascule {

class SafePoints {
 public:
  // Lives on its caller's stack until it is done, or removed.
  struct Call {
    std::uint64_t at_step = 0;
    const std::function<void()>* critical = nullptr;
    enum class State { kWaiting, kRunning, kDone } state = State::kWaiting;
    bool decoding = false;  // requests ran when its critical section began
    TimePoint began;
    SafePoint result;
  };

  void Add(Call& call) { waiting_.push_back(&call); }
  // It has not begun, and will not.
  void Remove(Call& call) { waiting_.remove(&call); }
  // The first that may run before step `next_step`, or at all where nothing decodes. Null: none.
  Call* Due(std::uint64_t next_step, bool idle) const;

  // `critical` runs between these two. Where requests run, the call is done once decoding goes on.
  void Begin(Call& call, bool decoding, TimePoint now);
  void End(Call& call, std::uint64_t next_step, TimePoint now);
  // No step begins meanwhile.
  bool critical_running() const { return critical_running_; }

  // A step that was due at `due` computes from `now` on. True when calls are done with that.
  bool StepBegan(TimePoint due, TimePoint now);
  // No step comes any more.
  void DecodingEnded(TimePoint now) { FinishStalled(now); }

 private:
  void FinishStalled(TimePoint until);

  std::list<Call*> waiting_;
  std::vector<Call*> stalled_;  // kRunning, until the next step begins
  bool critical_running_ = false;
  Duration beginning_{};  // that a step takes without a flip
};

}  // namespace bascule
