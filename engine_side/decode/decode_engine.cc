#include "engine_side/decode/decode_engine.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <utility>

#include "base/mutex.h"
#include "base/worker.h"
#include "engine_side/decode/decoder.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/scheduler.h"
#include "engine_side/decode/step_weights.h"

namespace bascule {
namespace {

constexpr std::int64_t kDefaultKvBytes = std::int64_t{1} << 30;
constexpr Duration kIdleWait = std::chrono::seconds(1);  // work and stops are notified; this only bounds the wait

class LeasedWeights final : public StepWeights {
 public:
  explicit LeasedWeights(WeightLease lease) : lease_(std::move(lease)) {}
  const WeightVersion& version() const override { return lease_.version(); }
  std::span<const std::byte> Tensor(int engine_rank, int tensor) const override {
    return lease_.Tensor(engine_rank, tensor);
  }

 private:
  WeightLease lease_;
};

Status CheckOptions(const DecodeOptions& options) {
  const auto bad = [](std::string what) { return Status::InvalidArgument("bad_options", std::move(what)); };
  const ModelConfig& config = options.config;
  for (const std::int64_t size : {config.layers, config.hidden, config.query_heads, config.kv_heads, config.head_size,
                                  config.ffn, config.vocabulary, config.max_positions}) {
    if (size < 1) return bad("a size of the model is not positive: " + config.Description());
  }
  if (config.query_heads % config.kv_heads != 0 || config.head_size % 2 != 0) {
    return bad("heads do not divide: " + config.Description());
  }
  if (options.tensors.layers.size() != static_cast<std::size_t>(config.layers)) {
    return bad(fmt::format("tensors of {} layers, the model has {}", options.tensors.layers.size(), config.layers));
  }
  if (options.dtype != DType::kBf16 && options.dtype != DType::kF32) {
    return bad(fmt::format("dtype={} want=BF16|F32", DTypeName(options.dtype)));
  }
  if (options.page_tokens < 1 || options.page_tokens % kKvGroup != 0) {
    return bad(fmt::format("page_tokens={} want a multiple of {}", options.page_tokens, kKvGroup));
  }
  if (!options.drains && options.kv_policy == KvPolicy::kDrain) return bad("kv_policy=drain needs flip mode shadow");
  if (options.max_waiting_tokens < 0 || options.time_limit <= Duration::zero()) {
    return bad(
        fmt::format("max_waiting_tokens={} time_limit_ms={}", options.max_waiting_tokens, MsOf(options.time_limit)));
  }
  if (options.threads < 1 || options.threads > 1024 || options.kv_pages < 0 || options.max_running < 1 ||
      options.max_waiting < 0 || options.max_step_tokens < 1) {
    return bad(fmt::format("threads={} kv_pages={} max_running={} max_waiting={} max_step_tokens={}", options.threads,
                           options.kv_pages, options.max_running, options.max_waiting, options.max_step_tokens));
  }
  return OkStatus();
}

std::int64_t KvPageCount(const DecodeOptions& options, const KvShape& shape) {
  if (options.kv_pages > 0) return options.kv_pages;
  const std::int64_t of_request = (options.config.max_positions + shape.page_tokens - 1) / shape.page_tokens;
  const std::int64_t page_bytes = shape.PageFloats().value_or(kDefaultKvBytes) * std::int64_t{sizeof(float)};
  const std::int64_t fitting = kDefaultKvBytes / shape.ranks / page_bytes;
  return std::max(std::int64_t{1}, std::min(options.max_running * of_request, fitting));
}

class Engine final : public DecodeEngine {
 public:
  Engine(const DecodeOptions& options, std::unique_ptr<KvCache> cache, std::unique_ptr<Decoder> decoder)
      : clock_(*options.clock),
        caches_(options.caches),
        kv_policy_(options.kv_policy),
        drains_(options.drains),
        cache_(std::move(cache)),
        decoder_(std::move(decoder)),
        scheduler_({.vocabulary = options.config.vocabulary,
                    .max_positions = options.config.max_positions,
                    .max_running = options.max_running,
                    .max_waiting = options.max_waiting,
                    .max_waiting_tokens = options.max_waiting_tokens,
                    .max_step_tokens = options.max_step_tokens,
                    .kv_pages = cache_->pages(),
                    .page_tokens = cache_->page_tokens(),
                    .kv_policy = options.kv_policy,
                    .time_limit = options.time_limit}) {}
  ~Engine() override { Stop(); }

  void Start(std::function<WeightLease()> acquire_live) override;
  Result<std::uint64_t> Submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink) override;
  void Cancel(std::uint64_t request) override;
  DecodeStatus status() const override;
  void Stop() override;
  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override;
  bool Decoding() const override;
  KvReport InvalidateKv(const WeightVersion& live) override;

 private:
  // A caller of RunAtSafePoint; lives on its stack.
  struct SafePointCall {
    std::uint64_t at_step = 0;
    const std::function<void()>* critical = nullptr;
    enum class State { kWaiting, kRunning, kDone } state = State::kWaiting;
    SafePoint result;
  };

  void Run();
  bool AwaitWork() EXCLUDES(mu_);
  void RunStep() EXCLUDES(mu_);
  std::vector<std::optional<SampledToken>> Compute(Scheduler::Step step);
  void Deliver(const std::vector<Delivery>& deliveries) EXCLUDES(mu_);
  SafePointCall* DueCall() REQUIRES(mu_);
  void RunCritical(SafePointCall& call) REQUIRES(mu_);
  bool Idle() const REQUIRES(mu_) { return !stepping_ && !critical_running_ && !scheduler_.HasWork(clock_.Now()); }

  Clock& clock_;
  CacheRegistry* const caches_;  // may be null
  const KvPolicy kv_policy_;
  const bool drains_;
  const std::unique_ptr<KvCache> cache_;
  const std::unique_ptr<Decoder> decoder_;
  AcquireStepWeights acquire_;  // Set before started_, constant after.

  mutable Mutex mu_;  // Never held across a forward pass, a critical section or a call to a sink.
  CondVar changed_;
  Scheduler scheduler_ GUARDED_BY(mu_);
  std::list<SafePointCall*> calls_ GUARDED_BY(mu_);  // in state kWaiting
  bool started_ GUARDED_BY(mu_) = false;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool stepping_ GUARDED_BY(mu_) = false;          // between AwaitWork and the end of the step
  bool critical_running_ GUARDED_BY(mu_) = false;  // no step begins and no other critical section
  std::uint64_t steps_ GUARDED_BY(mu_) = 0;
  std::uint64_t last_id_ GUARDED_BY(mu_) = 0;

  Worker thread_;
};

void Engine::Start(std::function<WeightLease()> acquire_live) {
  acquire_ = [acquire_live = std::move(acquire_live)]() -> std::unique_ptr<StepWeights> {
    WeightLease lease = acquire_live();
    if (lease.empty()) return nullptr;
    return std::make_unique<LeasedWeights>(std::move(lease));
  };
  {
    MutexLock lock(mu_);
    CHECK(!started_);
    started_ = true;
  }
  thread_ = Worker("decode", [this](std::stop_token) { Run(); });
}

Result<std::uint64_t> Engine::Submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink) {
  if (!drains_ && request.kv_policy.value_or(kv_policy_) == KvPolicy::kDrain) {
    return Status::FailedPrecondition("drain_needs_shadow", "flips are in place: no old version stays");
  }
  {
    MutexLock lock(mu_);
    if (stopping_) return Status::Unavailable("engine_stopping");
    if (!started_) return Status::Unavailable("nothing_live", "decoding has not started");
  }
  if (acquire_() == nullptr) return Status::Unavailable("nothing_live", "no version has been committed");
  MutexLock lock(mu_);
  if (stopping_) return Status::Unavailable("engine_stopping");
  RETURN_IF_ERROR(scheduler_.Submit(last_id_ + 1, std::move(request), std::move(sink), clock_.Now()));
  changed_.NotifyAll();
  return ++last_id_;
}

void Engine::Cancel(std::uint64_t request) {
  MutexLock lock(mu_);
  scheduler_.Cancel(request);
  changed_.NotifyAll();
}

DecodeStatus Engine::status() const {
  MutexLock lock(mu_);
  return {.running = scheduler_.running(),
          .waiting = scheduler_.waiting(),
          .kv_pages_used = scheduler_.pages_used(),
          .kv_pages_total = cache_->pages(),
          .prefix_entries = scheduler_.prefix_entries(),
          .kv_policy = kv_policy_,
          .steps = steps_,
          .tokens = scheduler_.tokens()};
}

void Engine::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void Engine::Run() {
  while (AwaitWork()) RunStep();
  std::vector<Delivery> deliveries;
  {
    MutexLock lock(mu_);
    scheduler_.FinishAll(FinishReason::kCancelled, Status::Cancelled("engine_stopping"), deliveries);
  }
  Deliver(deliveries);
}

// True when a step is to begin, false when the engine stops.
bool Engine::AwaitWork() {
  MutexLock lock(mu_);
  while (!stopping_) {
    if (SafePointCall* call = DueCall()) {
      RunCritical(*call);
    } else if (scheduler_.HasWork(clock_.Now()) && !critical_running_) {
      stepping_ = true;
      return true;
    } else {
      const TimePoint latest = clock_.Now() + kIdleWait;
      clock_.WaitUntil(changed_, mu_, std::min(latest, scheduler_.NextDeadline().value_or(latest)));
    }
  }
  return false;
}

void Engine::RunStep() {
  std::shared_ptr<StepWeights> weights = acquire_();
  std::vector<Delivery> deliveries;
  Scheduler::Step step;
  {
    MutexLock lock(mu_);
    if (weights != nullptr) {
      step = scheduler_.BeginStep(weights, clock_.Now(), deliveries);
    } else {
      scheduler_.FinishAll(FinishReason::kFailed, Status::Unavailable("nothing_live"), deliveries);
    }
  }
  weights.reset();  // the step holds it as long as it computes with it
  const bool computes = std::ranges::any_of(step.passes, [](const auto& pass) { return !pass.rows.empty(); });
  const auto sampled = Compute(std::move(step));
  {
    MutexLock lock(mu_);
    scheduler_.FinishStep(sampled, clock_.Now(), deliveries);
    if (computes) ++steps_;
    stepping_ = false;
    changed_.NotifyAll();
  }
  Deliver(deliveries);
}

// Answers the wishes of all passes, in order.
std::vector<std::optional<SampledToken>> Engine::Compute(Scheduler::Step step) {
  for (const PageCopy& copy : step.copies) cache_->CopyPage(copy.from, copy.to);
  std::vector<std::optional<SampledToken>> answers;
  for (Scheduler::Pass& pass : step.passes) {
    if (!pass.rows.empty()) decoder_->Forward(pass.rows, *pass.weights);
    pass.weights.reset();  // a session may be waiting for the lease
    std::ranges::move(decoder_->Sample(pass.wishes), std::back_inserter(answers));
  }
  return answers;
}

void Engine::Deliver(const std::vector<Delivery>& deliveries) {
  for (const Delivery& delivery : deliveries) {
    GenerateSink& sink = *delivery.sink;
    if (delivery.prompt) {
      sink.OnPrompt(*delivery.prompt);
    } else if (!delivery.token) {
      sink.OnFinish(delivery.finish, delivery.why);
    } else {
      sink.OnToken(*delivery.token);
      if (!sink.Full()) continue;
      MutexLock lock(mu_);
      scheduler_.Cancel(delivery.request, Status::ResourceExhausted("slow_reader", "its output is not read"));
    }
  }
}

Result<SafePoint> Engine::RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                         Deadline deadline) {
  MutexLock lock(mu_);
  if (stopping_) return Status::Cancelled("engine_stopping");
  SafePointCall call{.at_step = at_step, .critical = &critical, .result = {}};
  calls_.push_back(&call);
  changed_.NotifyAll();
  while (call.state != SafePointCall::State::kDone) {
    const bool waiting = call.state == SafePointCall::State::kWaiting;
    if (waiting && stopping_) {
      calls_.remove(&call);
      return Status::Cancelled("engine_stopping");
    }
    if (waiting && Idle()) {
      RunCritical(call);  // nothing decodes: no need to wait for the scheduler to wake
    } else if (waiting && deadline.Passed(clock_)) {
      calls_.remove(&call);
      return Status::DeadlineExceeded("deadline", fmt::format("at_step={} next_step={}", at_step, steps_));
    } else {
      // Once it runs it is short, and its end is waited for.
      clock_.WaitUntil(changed_, mu_, waiting ? deadline.point() : clock_.Now() + kIdleWait);
    }
  }
  return call.result;
}

Engine::SafePointCall* Engine::DueCall() {
  if (critical_running_) return nullptr;
  for (SafePointCall* call : calls_) {
    if (Idle() || call->at_step <= steps_) return call;
  }
  return nullptr;
}

void Engine::RunCritical(SafePointCall& call) {
  calls_.remove(&call);
  call.state = SafePointCall::State::kRunning;
  critical_running_ = true;
  const bool decoding = scheduler_.running() > 0;
  const TimePoint begin = clock_.Now();
  mu_.Unlock();
  (*call.critical)();
  mu_.Lock();
  call.result.next_step = steps_;
  call.result.stall = decoding ? clock_.Now() - begin : Duration::zero();
  call.state = SafePointCall::State::kDone;
  critical_running_ = false;
  changed_.NotifyAll();
}

bool Engine::Decoding() const {
  MutexLock lock(mu_);
  return scheduler_.running() > 0;
}

KvReport Engine::InvalidateKv(const WeightVersion& live) {
  MutexLock lock(mu_);
  CHECK(!stepping_);
  KvReport report = scheduler_.Invalidate(live);
  if (caches_ != nullptr) report.caches = caches_->Invalidate(live);
  changed_.NotifyAll();  // requests may have waited for this version
  return report;
}

constexpr std::pair<KvPolicy, std::string_view> kKvPolicies[] = {{KvPolicy::kRecompute, "recompute"},
                                                                 {KvPolicy::kDrain, "drain"},
                                                                 {KvPolicy::kKeep, "keep"},
                                                                 {KvPolicy::kAbort, "abort"}};

}  // namespace

std::string_view KvPolicyName(KvPolicy policy) { return kKvPolicies[static_cast<std::size_t>(policy)].second; }

Result<KvPolicy> ParseKvPolicy(std::string_view name) {
  for (const auto& [policy, known] : kKvPolicies) {
    if (known == name) return policy;
  }
  return Status::InvalidArgument("bad_kv_policy", fmt::format("\"{}\" want recompute|drain|keep|abort", name));
}

std::string_view FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kAbortedByFlip:
      return "aborted_by_flip";
    case FinishReason::kTooStale:
      return "too_stale";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "unknown";
}

Result<std::unique_ptr<DecodeEngine>> DecodeEngine::Create(DecodeOptions options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const ModelConfig& config = options.config;
  ASSIGN_OR_RETURN(const RankShape shape, RankShapeOf(config, options.tensors, options.ranks));
  const KvShape kv_shape{.layers = config.layers,
                         .kv_heads = shape.kv_heads,
                         .head_size = config.head_size,
                         .page_tokens = options.page_tokens,
                         .ranks = shape.ranks};
  ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, KvCache::Create(kv_shape, KvPageCount(options, kv_shape)));
  ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder,
                   Decoder::Create({.config = config,
                                    .tensors = options.tensors,
                                    .shape = shape,
                                    .weight_type = options.dtype == DType::kBf16 ? WeightType::kBf16 : WeightType::kF32,
                                    .threads = options.threads,
                                    .max_rows = options.max_step_tokens,
                                    .max_logits = std::min(options.max_running, options.max_step_tokens)},
                                   *cache));
  return std::unique_ptr<DecodeEngine>(new Engine(options, std::move(cache), std::move(decoder)));
}

}  // namespace bascule
