// Runs the product's threads as fibers of one thread, one at a time, in an order that a seed decides, on a time that
// moves only when the schedule lets it. threads_as_fibers.cc has pthread's functions call this while a schedule runs:
// mutexes, condition variables and threads of the libraries under test, unchanged, end up here.
//
//   Scheduler scheduler(seed);
//   const Status end = scheduler.Run([&] { ... threads, waits, deadlines on scheduler.clock() ... });
//
// Every lock, unlock, wait, start and join is a place where another fiber may go on. Virtual time moves a little with
// every switch and, when no fiber can go on, to the first wait that ends.
//
// Thread-safety: confined to the thread that calls Run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tests/simulation/random.h"
#include "tests/support/fiber/stack_switch.h"

namespace bascule::simulation {

// The simulated process a fiber belongs to; those that a fiber starts belong to its own. 0 is the simulation itself.
using NodeId = int;

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed);
  ~Scheduler();

  // Runs `main` as the first fiber and returns when every fiber has ended.
  //
  // Internal-bug tokens, each a finding: Aborted "deadlock"  nothing can go on and nothing waits for a time
  // Aborted "endless"         more switches than any schedule needs
  // Aborted "unbounded_wait"  a wait without a deadline, or with one farther than an idle connection's
  Status Run(std::function<void()> main);

  // The scheduler whose fiber runs now; null outside of Run.
  static Scheduler* Running();

  Clock& clock() { return *clock_; }
  TimePoint now() const { return now_; }
  void Leap(Duration time) { now_ += time; }  // the machine was slow

  NodeId node() const;
  void Enter(NodeId node);  // from now on the running fiber belongs to it
  // Its fibers do not run until then, like those of a stopped process; one that holds a lock first lets go of it.
  void Stall(NodeId node, TimePoint until);
  void EndStalls() { stalled_.clear(); }
  // From now on the running fiber goes before all others whenever it can.
  void GoFirst();
  std::uint64_t switches() const { return switches_; }
  // Of all that was decided so far: two runs with equal traces have done the same.
  std::uint64_t trace() const { return trace_; }
  void Note(std::uint64_t event);  // makes `event` part of the trace
  // Run returns this at once; no fiber goes on. What they hold is not given back: the process is of no more use.
  [[noreturn]] void Abandon(std::string_view reason, const std::string& message);
  int live_fibers() const { return static_cast<int>(fibers_.size()); }
  std::uint64_t RandomBits() { return ids_.Next(); }  // for identifiers

  // What pthread's functions do.
  struct Fiber;
  std::uint64_t Spawn(void* (*body)(void*), void* argument);
  void Join(std::uint64_t fiber);
  std::uint64_t self() const;
  void NameSelf(std::uint64_t fiber, const char* name);
  void Lock(void* mutex);
  bool TryLock(void* mutex);
  void Unlock(void* mutex);
  // False at `until`.
  bool Wait(void* cond, void* mutex, std::optional<TimePoint> until);
  void Notify(void* cond, bool all);
  // Until Notify(what), or `until`: a wait for something that is no condition variable and has no mutex.
  void WaitFor(const void* what, std::optional<TimePoint> until);
  void LetOthersGoOn() { MaybeSwitch(); }
  void Yield();                  // others first
  std::string Describe() const;  // every fiber and what it waits for

 private:
  class VirtualClock;
  enum class State { kRunnable, kLocking, kWaiting, kJoining, kDone };

  static void FiberEntry();
  void MaybeSwitch();
  void Block(State state, const void* what, std::optional<TimePoint> until = {});
  void Wake(Fiber& fiber);
  void SwitchToNext();
  Fiber* Choose();
  Fiber* ChooseAmong(const std::vector<Fiber*>& able);
  bool Stalled(const Fiber& fiber) const;
  bool AdvanceTime();
  void Finish(Fiber& fiber);
  Fiber& FiberOf(std::uint64_t id) const;

  const std::unique_ptr<Clock> clock_;
  Random random_;
  Random ids_;
  TimePoint now_;
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // that have not ended, or are not joined
  std::vector<Fiber*> runnable_;
  std::vector<std::unique_ptr<fiber::Stack>> idle_stacks_;
  std::unique_ptr<Fiber> ended_;  // freed by whoever runs next
  std::unordered_map<NodeId, TimePoint> stalled_;
  fiber::Resumption outside_;
  Status failure_;
  std::uint64_t next_id_ = 1;
  std::uint64_t switches_ = 0;
  std::uint64_t trace_ = 0;
  // How this schedule interleaves: how often a fiber is interrupted though it could go on, and whether the fibers have
  // ranks (the highest that can runs) or are drawn.
  std::uint32_t interrupt_in_1024_ = 0;
  bool ranked_ = false;
};

}  // namespace bascule::simulation
