#include "tests/support/simt/emulator.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "tests/support/fiber/stack_switch.h"

// Where the kernels' shared memory lies, as the linker names it; there is none where no kernel has any.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern std::byte __start_simt_shared[];
[[gnu::weak, gnu::visibility("hidden")]] extern std::byte __stop_simt_shared[];
}

namespace bascule::simt {
namespace {

constexpr unsigned kWarpThreads = 32;
constexpr unsigned kBlockThreadsMax = 1024;
constexpr std::size_t kStackBytes =
    128 << 10;  // kernels call little; a fiber that starts costs AddressSanitizer by the byte

std::atomic<std::uint64_t> next_seed{1};

// AddressSanitizer keeps gaps between the arrays.
[[gnu::no_sanitize_address]] void SpoilSharedMemory(std::uint64_t garbage) {
  for (volatile std::byte* at = __start_simt_shared; at != __stop_simt_shared; ++at) {
    *at = static_cast<std::byte>(garbage);
  }
}

[[noreturn]] void Fail(const char* what, unsigned block, unsigned thread) {
  std::fprintf(stderr, "simt: %s (block %u, thread %u)\n", what, block, thread);
  std::abort();
}

enum class State { kReady, kAtBarrier, kInExchange, kDone };

struct Thread {
  fiber::Resumption resumption;
  State state = State::kReady;
  std::uint32_t mask = 0;                                 // of the exchange it is in
  std::uint64_t brings = 0;                               // to that exchange
  std::array<std::uint64_t, kWarpThreads> gathered = {};  // in its last one
};

// One launch, on the host thread that made it.
class Run {
 public:
  Run(std::uint64_t blocks, unsigned threads, Body body, void* context)
      : blocks_(blocks), body_(body), context_(context), random_(next_seed++), threads_(threads) {
    while (Stacks().size() < threads) Stacks().push_back(std::make_unique<fiber::Stack>(kStackBytes));
  }

  void All() {
    std::vector<std::uint64_t> order(blocks_);
    std::iota(order.begin(), order.end(), std::uint64_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::uint64_t block : order) OneBlock(static_cast<unsigned>(block));
  }
  void ThreadMain() {
    body_(context_);
    threads_[running_].state = State::kDone;
    fiber::Switch(threads_[running_].resumption, outside_, /*for_good=*/true);
    std::abort();  // nobody resumes it
  }
  void Barrier() {
    threads_[running_].state = State::kAtBarrier;
    Leave();
  }
  const std::uint64_t* Gather(std::uint32_t mask, std::uint64_t value);

  unsigned thread() const { return running_; }
  unsigned block() const { return block_; }
  unsigned threads() const { return static_cast<unsigned>(threads_.size()); }
  std::uint64_t blocks() const { return blocks_; }

 private:
  static std::vector<std::unique_ptr<fiber::Stack>>& Stacks() {
    static thread_local std::vector<std::unique_ptr<fiber::Stack>> stacks;
    return stacks;
  }
  void OneBlock(unsigned block);
  void ReleaseBarrier();
  void Leave() { fiber::Switch(threads_[running_].resumption, outside_); }

  const std::uint64_t blocks_;
  const Body body_;
  void* const context_;
  std::mt19937_64 random_;
  std::vector<Thread> threads_;
  std::vector<unsigned> ready_;
  fiber::Resumption outside_;
  unsigned block_ = 0;
  unsigned running_ = 0;
};

thread_local Run* current = nullptr;

void FiberEntry() {
  fiber::Arrived();
  current->ThreadMain();
}

void Run::OneBlock(unsigned block) {
  block_ = block;
  SpoilSharedMemory(random_());
  ready_.resize(threads_.size());
  std::iota(ready_.begin(), ready_.end(), 0u);
  for (unsigned t = 0; t < threads_.size(); ++t) {
    threads_[t] = {.resumption = fiber::StartOn(*Stacks()[t], &FiberEntry)};
  }
  for (std::size_t done = 0; done < threads_.size();) {
    if (ready_.empty()) ReleaseBarrier();
    std::swap(ready_[random_() % ready_.size()], ready_.back());
    running_ = ready_.back();
    ready_.pop_back();
    fiber::Switch(outside_, threads_[running_].resumption);
    if (threads_[running_].state == State::kDone) ++done;
  }
}

void Run::ReleaseBarrier() {
  for (unsigned t = 0; t < threads_.size(); ++t) {
    if (threads_[t].state == State::kAtBarrier) continue;
    Fail(threads_[t].state == State::kDone ? "a thread ended before a barrier that others wait at"
                                           : "a lane waits for others that do not come",
         block_, t);
  }
  for (unsigned t = 0; t < threads_.size(); ++t) {
    threads_[t].state = State::kReady;
    ready_.push_back(t);
  }
}

const std::uint64_t* Run::Gather(std::uint32_t mask, std::uint64_t value) {
  const unsigned lane = running_ % kWarpThreads;
  Thread* const warp = threads_.data() + running_ - lane;
  Thread& self = warp[lane];
  const auto lanes = std::min<std::size_t>(kWarpThreads, threads_.size() - (running_ - lane));
  const auto takes_part = [mask](std::size_t one) { return (mask >> one & 1) != 0; };
  if (!takes_part(lane)) Fail("a lane takes part in an exchange that leaves it out", block_, running_);
  self.mask = mask;
  self.brings = value;
  self.state = State::kInExchange;
  for (std::size_t other = 0; other < lanes; ++other) {
    if (!takes_part(other) || warp[other].state == State::kInExchange) continue;
    Leave();  // the last lane to come goes on from here at once
    return self.gathered.data();
  }
  std::array<std::uint64_t, kWarpThreads> gathered = {};
  for (std::size_t other = 0; other < lanes; ++other) {
    if (takes_part(other)) gathered[other] = warp[other].brings;
  }
  for (std::size_t other = 0; other < lanes; ++other) {
    if (!takes_part(other)) continue;
    if (warp[other].mask != mask) Fail("lanes do not agree on who takes part in an exchange", block_, running_);
    warp[other].gathered = gathered;
    warp[other].state = State::kReady;
    if (other != lane) ready_.push_back(running_ - lane + static_cast<unsigned>(other));
  }
  return self.gathered.data();
}

std::map<std::string, Entry, std::less<>>& Kernels() {
  static std::map<std::string, Entry, std::less<>> kernels;
  return kernels;
}

}  // namespace

void SetSeed(std::uint64_t seed) { next_seed = seed; }

void RunGrid(std::uint64_t blocks, unsigned threads, Body body, void* context) {
  CHECK(current == nullptr && threads > 0 && threads <= kBlockThreadsMax);
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  Run run(blocks, threads, body, context);
  current = &run;
  run.All();
  current = nullptr;
}

Index ThreadIndex() { return {current->thread()}; }
Index BlockIndex() { return {current->block()}; }
Index BlockSize() { return {current->threads()}; }
Index GridSize() { return {static_cast<unsigned>(current->blocks())}; }
int Lane() { return static_cast<int>(current->thread() % kWarpThreads); }
void BlockBarrier() { current->Barrier(); }
const std::uint64_t* Gather(std::uint32_t mask, std::uint64_t value) { return current->Gather(mask, value); }

bool RegisterKernel(std::string_view qualified_name, const Entry& entry) {
  return Kernels().emplace(qualified_name, entry).second;
}

const Entry* FindKernel(std::string_view mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(std::string(mangled).c_str(), nullptr, nullptr, &status), &std::free);
  if (demangled == nullptr) return nullptr;
  std::string_view name = demangled.get();
  name = name.substr(0, name.find('('));
  if (const auto space = name.rfind(' '); space != name.npos)
    name.remove_prefix(space + 1);  // a template's return type
  const auto found = Kernels().find(name);
  return found == Kernels().end() ? nullptr : &found->second;
}

}  // namespace bascule::simt
