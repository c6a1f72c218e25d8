#include "examples/04_your_engine/your_engine.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace your {
namespace {

using namespace bascule;

// The order of local tensors in a lease: received ones, then derived ones.
enum { kEmbedding, kHead, kTable };

const float* Floats(std::span<const std::byte> bytes) { return reinterpret_cast<const float*>(bytes.data()); }

}  // namespace

Engine::Engine() {
  const Status registered = caches_.Register(
      {.name = "prompts",
       .policy = CachePolicy::kDrop,
       .drop =
           [this](const WeightVersion& live) {
             return std::erase_if(prompts_, [&](const auto& entry) { return entry.second.version != live.digest; });
           },
       .count_others =
           [this](const WeightVersion& live) {
             return static_cast<std::uint64_t>(std::count_if(prompts_.begin(), prompts_.end(), [&](const auto& entry) {
               return entry.second.version != live.digest;
             }));
           }});
  CHECK(registered.ok());
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (decode_.joinable()) decode_.join();
}

WeightReceiverOptions Engine::Weights() {
  WeightReceiverOptions options;
  options.layout =
      PlainLayout({{"embedding", DType::kF32, {kVocab, kHidden}}, {"head", DType::kF32, {kVocab, kHidden}}});
  options.derived = {{{.name = "table", .dtype = DType::kF32, .shape = {kVocab, kVocab}}}};
  return options;
}

Status Engine::Finalize(const StagedWeights& staged, Deadline /*deadline*/) {
  const float* embedding = Floats(staged.tensor(0, kEmbedding));
  const float* head = Floats(staged.tensor(0, kHead));
  auto* table = reinterpret_cast<float*>(staged.derived(0, 0).data());
  for (int from = 0; from < kVocab; ++from) {
    for (int to = 0; to < kVocab; ++to) {
      float& score = table[from * kVocab + to];
      for (int h = 0; h < kHidden; ++h) score += embedding[from * kHidden + h] * head[to * kHidden + h];
    }
  }
  return OkStatus();
}

Result<SafePoint> Engine::RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                         Deadline deadline) {
  std::unique_lock lock(mu_);
  flip_before_ = at_step;
  const bool came = changed_.wait_for(lock, deadline.Left(Clock::Real()), [&] {
    return stopping_ || (!in_step_ && (running_.empty() || next_step_ >= at_step));
  });
  const TimePoint begin = Clock::Real().Now();
  if (came && !stopping_) critical();  // no step begins meanwhile; it calls InvalidateKv
  flip_before_.reset();
  changed_.notify_all();
  if (stopping_) return Status::Cancelled("engine_stopping");
  if (!came) return Status::DeadlineExceeded("deadline", "no safe point came in time");
  return SafePoint{.next_step = next_step_, .stall = Decoding() ? Clock::Real().Now() - begin : Duration{}};
}

KvReport Engine::InvalidateKv(const WeightVersion& live) {
  KvReport report;
  for (auto& [id, request] : running_) {
    ++report.recomputed;
    report.recompute_tokens += request.kv.size();
    request.kv.clear();
    request.kv_end = request.tokens.size() - std::min<std::size_t>(kWindow, request.tokens.size());
  }
  report.caches = caches_.Invalidate(live);
  return report;
}

void Engine::Start(std::function<WeightLease()> acquire_live) {
  acquire_live_ = std::move(acquire_live);
  decode_ = std::thread([this] { Decode(); });
}

void Engine::Decode() {
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] {
      const bool may_step = visitors_ == 0 && (!flip_before_ || next_step_ < *flip_before_);
      return stopping_ || (may_step && !running_.empty());
    });
    if (stopping_) return;
    in_step_ = true;
    lock.unlock();
    Step(acquire_live_());
    lock.lock();
    in_step_ = false;
    ++next_step_;
    changed_.notify_all();
  }
}

// One more token for every request, all of one version.
void Engine::Step(const WeightLease& weights) {
  if (weights.empty()) return;  // nothing is live yet
  for (auto& [id, request] : running_) {
    Prefill(request, weights);
    Scores sum{};
    for (const Scores& scores : request.kv) {
      std::transform(sum.begin(), sum.end(), scores.begin(), sum.begin(), std::plus<>());
    }
    const int next = static_cast<int>(std::max_element(sum.begin(), sum.end()) - sum.begin());
    request.tokens.push_back(next);
    request.made.push_back({next, weights.version().number});
  }
}

// Key/value state of the tokens that have none: a prompt, the token before, or after a flip the last few.
void Engine::Prefill(Request& request, const WeightLease& weights) {
  const auto prompt_end = request.tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt_tokens);
  const std::vector<int> prompt(request.tokens.begin(), prompt_end);
  if (const auto cached = prompts_.find(prompt); request.made.empty() && cached != prompts_.end()) {
    request.kv = cached->second.kv;
    request.kv_end = request.prompt_tokens;
  }
  const float* const table = Floats(weights.Tensor(0, kTable));
  for (; request.kv_end < request.tokens.size(); ++request.kv_end) {
    const float* const row = table + request.tokens[request.kv_end] * kVocab;
    std::copy(row, row + kVocab, request.kv.emplace_back().begin());
    if (request.kv.size() > kWindow) request.kv.pop_front();
  }
  if (request.made.empty()) prompts_[prompt] = {request.kv, weights.version().digest};
}

template <typename Visit>
auto Engine::BetweenSteps(const Visit& visit) {
  std::unique_lock lock(mu_);
  ++visitors_;
  changed_.wait(lock, [this] { return !in_step_; });
  --visitors_;
  changed_.notify_all();
  return visit();
}

int Engine::Submit(const std::vector<int>& prompt) {
  return BetweenSteps([&] {
    Request& request = running_[next_id_];
    request.tokens = prompt;
    request.prompt_tokens = prompt.size();
    return next_id_++;
  });
}

bool Engine::Await(int id, std::uint64_t version, int count, Deadline deadline) {
  const auto has_them = [&] {
    const std::vector<Token>& made = running_.at(id).made;
    return std::cmp_greater_equal(made.size(), count) &&
           made[made.size() - static_cast<std::size_t>(count)].version == version;
  };
  while (!BetweenSteps(has_them)) {
    std::unique_lock lock(mu_);
    const std::uint64_t seen = next_step_;
    if (!changed_.wait_for(lock, deadline.Left(Clock::Real()), [&] { return next_step_ != seen; })) return false;
  }
  return true;
}

std::vector<Token> Engine::Finish(int id) {
  return BetweenSteps([&] {
    std::vector<Token> made = std::move(running_.at(id).made);
    running_.erase(id);
    return made;
  });
}

}  // namespace your
