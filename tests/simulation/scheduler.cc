#include "tests/simulation/scheduler.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/single_threaded.h>

#include <algorithm>
#include <cstdlib>

namespace bascule::simulation {
namespace {

constexpr std::uint64_t kMaxSwitches = 400'000;
constexpr Duration kLongestWait = std::chrono::hours(1) + std::chrono::seconds(1);  // an idle connection asks again
constexpr std::uint64_t kFiberHandle = 0xf1be000000000000;                          // no address of a real thread
constexpr std::uint32_t kDrawRankAnewIn = 48;
constexpr std::uint32_t kWakeSpuriouslyIn = 400;

Scheduler* running_scheduler = nullptr;

// A mutex that nobody holds is all zero for pthread too, so its memory can serve both.
int& OwnerOf(void* mutex) { return static_cast<pthread_mutex_t*>(mutex)->__data.__owner; }
unsigned& WaitersOf(void* mutex) { return static_cast<pthread_mutex_t*>(mutex)->__data.__nusers; }

}  // namespace

class Scheduler::VirtualClock final : public Clock {
 public:
  explicit VirtualClock(Scheduler& scheduler) : scheduler_(scheduler) {}
  TimePoint Now() override { return scheduler_.now_; }
  std::chrono::system_clock::time_point WallNow() override {
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(scheduler_.now_.time_since_epoch()));
  }
  bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) override REQUIRES(mu) {
    WaitReal(cond, mu, until);
    return scheduler_.now_ < until;
  }

 private:
  Scheduler& scheduler_;
};

struct Scheduler::Fiber {
  std::uint64_t id = 0;
  NodeId node = 0;
  std::string name;
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
  std::function<void()> main;  // of the first fiber
  State state = State::kRunnable;
  const void* what = nullptr;  // it waits for
  std::optional<TimePoint> until;
  bool timed_out = false;
  int held = 0;  // locks
  std::uint64_t rank = 0;
  bool first = false;
  std::unique_ptr<fiber::Stack> stack;
  std::uint64_t turns = 0;
  fiber::Resumption resumption;
};

Scheduler::Scheduler(std::uint64_t seed)
    : clock_(std::make_unique<VirtualClock>(*this)),
      random_(seed),
      ids_(~seed),
      now_(TimePoint(std::chrono::hours(1000))) {
  // Half of all schedules leave most fibers alone until they wait: long runs of one thread find what fine interleaving
  // never reaches.
  constexpr std::uint32_t kInterrupts[] = {0, 16, 100, 400};
  interrupt_in_1024_ = kInterrupts[random_.Below(std::size(kInterrupts))];
  ranked_ = random_.OneIn(3);
}

Scheduler::~Scheduler() = default;

Scheduler* Scheduler::Running() { return running_scheduler; }

Status Scheduler::Run(std::function<void()> main) {
  // The C++ library spares what one thread alone does not need; fibers are many.
  __libc_single_threaded = 0;
  running_scheduler = this;
  Spawn(nullptr, nullptr);
  fibers_.back()->main = std::move(main);
  fibers_.back()->name = "simulation";
  running_ = runnable_.back();
  runnable_.pop_back();
  Switch(outside_, running_->resumption);
  running_scheduler = nullptr;
  return failure_;
}

void Scheduler::FiberEntry() {
  fiber::Arrived();
  Scheduler& scheduler = *running_scheduler;
  Fiber& fiber = *scheduler.running_;
  if (fiber.main) {
    fiber.main();
  } else {
    fiber.body(fiber.argument);
  }
  scheduler.Finish(fiber);
}

std::uint64_t Scheduler::Spawn(void* (*body)(void*), void* argument) {
  auto fiber = std::make_unique<Fiber>();
  fiber->id = kFiberHandle | next_id_++;
  fiber->node = running_ == nullptr ? 0 : running_->node;
  fiber->body = body;
  fiber->argument = argument;
  fiber->rank = random_.Next();
  if (idle_stacks_.empty()) idle_stacks_.push_back(std::make_unique<fiber::Stack>());
  fiber->stack = std::move(idle_stacks_.back());
  idle_stacks_.pop_back();
  fiber->resumption = StartOn(*fiber->stack, &FiberEntry);
  fibers_.push_back(std::move(fiber));
  Wake(*fibers_.back());
  const std::uint64_t id = fibers_.back()->id;
  if (running_ != nullptr) MaybeSwitch();
  return id;
}

void Scheduler::Finish(Fiber& fiber) {
  CHECK(fiber.held == 0);
  fiber.state = State::kDone;
  for (const auto& other : fibers_) {
    if (other->state == State::kJoining && other->what == &fiber) Wake(*other);
  }
  idle_stacks_.push_back(std::move(fiber.stack));
  const bool last = std::all_of(fibers_.begin(), fibers_.end(), [](const auto& f) { return f->state == State::kDone; });
  if (!last) {
    SwitchToNext();
    CHECK(false);
  }
  Switch(fiber.resumption, outside_, /*for_good=*/true);
}

void Scheduler::Join(std::uint64_t id) {
  Fiber& fiber = FiberOf(id);
  MaybeSwitch();
  while (fiber.state != State::kDone) Block(State::kJoining, &fiber);
  std::erase_if(fibers_, [&](const auto& other) { return other.get() == &fiber; });
}

Scheduler::Fiber& Scheduler::FiberOf(std::uint64_t id) const {
  const auto found = std::find_if(fibers_.begin(), fibers_.end(), [&](const auto& fiber) { return fiber->id == id; });
  CHECK(found != fibers_.end());
  return **found;
}

std::uint64_t Scheduler::self() const { return running_->id; }
void Scheduler::NameSelf(std::uint64_t fiber, const char* name) { FiberOf(fiber).name = name; }
NodeId Scheduler::node() const { return running_ == nullptr ? 0 : running_->node; }
void Scheduler::Enter(NodeId node) { running_->node = node; }
void Scheduler::GoFirst() { running_->first = true; }
void Scheduler::Note(std::uint64_t event) { trace_ = Mixed(trace_ ^ event); }

void Scheduler::Stall(NodeId node, TimePoint until) {
  TimePoint& end = stalled_[node];
  end = std::max(end, until);
}

bool Scheduler::Stalled(const Fiber& fiber) const {
  if (fiber.held > 0) return false;
  const auto found = stalled_.find(fiber.node);
  return found != stalled_.end() && found->second > now_;
}

void Scheduler::Lock(void* mutex) {
  MaybeSwitch();
  const int self = static_cast<int>(running_->id & 0x7fffffff);
  if (OwnerOf(mutex) == self) Abandon("deadlock", fmt::format("{} locks a mutex that it holds", running_->name));
  while (OwnerOf(mutex) != 0) {
    ++WaitersOf(mutex);
    Block(State::kLocking, mutex);
    --WaitersOf(mutex);
  }
  OwnerOf(mutex) = self;
  ++running_->held;
}

bool Scheduler::TryLock(void* mutex) {
  MaybeSwitch();
  if (OwnerOf(mutex) != 0) return false;
  OwnerOf(mutex) = static_cast<int>(running_->id & 0x7fffffff);
  ++running_->held;
  return true;
}

void Scheduler::Unlock(void* mutex) {
  OwnerOf(mutex) = 0;
  --running_->held;
  if (WaitersOf(mutex) > 0) {
    for (const auto& fiber : fibers_) {
      if (fiber->state == State::kLocking && fiber->what == mutex) Wake(*fiber);
    }
  }
  MaybeSwitch();
}

bool Scheduler::Wait(void* cond, void* mutex, std::optional<TimePoint> until) {
  if (!until || *until > now_ + kLongestWait) {
    Abandon("unbounded_wait", fmt::format("{} waits without a deadline that comes", running_->name));
  }
  Fiber& self = *running_;
  OwnerOf(mutex) = 0;
  --self.held;
  for (const auto& fiber : fibers_) {
    if (fiber->state == State::kLocking && fiber->what == mutex) Wake(*fiber);
  }
  if (random_.OneIn(kWakeSpuriouslyIn)) until = now_;
  Block(State::kWaiting, cond, until);
  const bool in_time = !self.timed_out;
  while (OwnerOf(mutex) != 0) {
    ++WaitersOf(mutex);
    Block(State::kLocking, mutex);
    --WaitersOf(mutex);
  }
  OwnerOf(mutex) = static_cast<int>(self.id & 0x7fffffff);
  ++self.held;
  return in_time;
}

void Scheduler::Notify(void* cond, bool all) {
  std::vector<Fiber*> waiting;
  for (const auto& fiber : fibers_) {
    if (fiber->state == State::kWaiting && fiber->what == cond) waiting.push_back(fiber.get());
  }
  if (waiting.empty()) return;
  if (!all) waiting = {waiting[random_.Below(waiting.size())]};
  for (Fiber* fiber : waiting) Wake(*fiber);
}

void Scheduler::WaitFor(const void* what, std::optional<TimePoint> until) { Block(State::kWaiting, what, until); }

void Scheduler::Yield() {
  running_->rank = random_.Next() >> 8;
  Wake(*running_);
  SwitchToNext();
}

void Scheduler::Wake(Fiber& fiber) {
  fiber.state = State::kRunnable;
  fiber.until.reset();
  runnable_.push_back(&fiber);
}

void Scheduler::Block(State state, const void* what, std::optional<TimePoint> until) {
  running_->state = state;
  running_->what = what;
  running_->until = until;
  running_->timed_out = false;
  SwitchToNext();
}

void Scheduler::MaybeSwitch() {
  const bool somebody_goes_first =
      std::any_of(runnable_.begin(), runnable_.end(), [](const Fiber* fiber) { return fiber->first; });
  if (!somebody_goes_first && !Stalled(*running_)) {
    if (ranked_ && random_.OneIn(kDrawRankAnewIn)) running_->rank = random_.Next();
    if (!ranked_ && random_.Next() % 1024 >= interrupt_in_1024_) return;
  }
  if (runnable_.empty()) return;
  Wake(*running_);
  SwitchToNext();
}

void Scheduler::SwitchToNext() {
  if (++switches_ > kMaxSwitches) Abandon("endless", Describe());
  now_ += std::chrono::nanoseconds(random_.Below(30'000));
  Fiber* next = Choose();
  while (next == nullptr) {
    if (!AdvanceTime()) Abandon("deadlock", Describe());
    next = Choose();
  }
  Fiber* const from = running_;
  Note(next->id);
  ++next->turns;
  if (next == from) return;
  running_ = next;
  Switch(from->resumption, next->resumption, from->state == State::kDone);
}

Scheduler::Fiber* Scheduler::Choose() {
  for (const auto& fiber : fibers_) {
    if (fiber->until && *fiber->until <= now_) {
      Wake(*fiber);
      fiber->timed_out = true;
    }
  }
  std::vector<Fiber*> able;
  for (Fiber* fiber : runnable_) {
    if (!Stalled(*fiber)) able.push_back(fiber);
  }
  if (able.empty()) return nullptr;
  Fiber* const chosen = ChooseAmong(able);
  runnable_.erase(std::find(runnable_.begin(), runnable_.end(), chosen));
  return chosen;
}

Scheduler::Fiber* Scheduler::ChooseAmong(const std::vector<Fiber*>& able) {
  for (Fiber* fiber : able) {
    if (fiber->first) return fiber;
  }
  if (!ranked_) return able[random_.Below(able.size())];
  return *std::max_element(able.begin(), able.end(), [](Fiber* a, Fiber* b) { return a->rank < b->rank; });
}

// To the first wait or stall that ends. False when there is none.
bool Scheduler::AdvanceTime() {
  TimePoint next = TimePoint::max();
  for (const auto& fiber : fibers_) {
    if (fiber->until) next = std::min(next, *fiber->until);
  }
  if (!runnable_.empty()) {
    for (const auto& [node, until] : stalled_) {
      if (until > now_) next = std::min(next, until);
    }
  }
  if (next == TimePoint::max()) return false;
  now_ = std::max(now_, next);
  return true;
}

void Scheduler::Abandon(std::string_view reason, const std::string& message) {
  failure_ = Status::Aborted(std::string(reason), message);
  Switch(running_->resumption, outside_, /*for_good=*/true);
  std::abort();
}

std::string Scheduler::Describe() const {
  constexpr const char* kStates[] = {"can go on", "waits for a lock", "waits", "joins", "has ended"};
  std::string text;
  for (const auto& fiber : fibers_) {
    if (fiber->state == State::kDone) continue;
    text += fmt::format("\n  node {} {}, {} turns: {}", fiber->node, fiber->name, fiber->turns,
                        kStates[static_cast<int>(fiber->state)]);
    if (fiber->until) text += fmt::format(", {:.3f} s more", MsOf(*fiber->until - now_) / 1000);
  }
  return text;
}

}  // namespace bascule::simulation
