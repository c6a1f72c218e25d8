#include "engine_side/decode/decode_engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread_priority.h"
#include "base/worker.h"
#include "engine_side/decode/delivery.h"
#include "engine_side/decode/device_decoder.h"
#include "engine_side/decode/host_decoder.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/options_check.h"
#include "engine_side/decode/safe_points.h"
#include "engine_side/decode/scheduler.h"
#include "engine_side/decode/step_weights.h"

namespace bascule {
namespace {

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

// Of a step that computes nothing but the next token of requests; 0: it does more.
std::int64_t DecodingRows(const Scheduler::Step& step) {
  const auto draws = [](const SampleWish& wish) { return wish.rule.given < 0; };
  std::int64_t rows = 0;
  for (const Scheduler::Pass& pass : step.passes) {
    if (pass.wishes.size() != pass.rows.size() || !std::ranges::all_of(pass.wishes, draws)) return 0;
    rows += std::ssize(pass.rows);
  }
  return rows;
}

WeightType WeightTypeOf(DType dtype) { return dtype == DType::kBf16 ? WeightType::kBf16 : WeightType::kF32; }

class Engine final : public DecodeEngine {
 public:
  // `cache` is the host decoder's; a device's state is its decoder's own.
  Engine(const DecodeOptions& options, std::int64_t kv_pages, std::unique_ptr<KvCache> cache,
         std::unique_ptr<Decoder> decoder)
      : clock_(*options.clock),
        caches_(options.caches),
        kv_policy_(options.kv_policy),
        drains_(options.drains),
        cores_(options.cores),
        staging_(options.staging),
        device_(options.devices.Name()),
        kv_pages_(kv_pages),
        cache_(std::move(cache)),
        decoder_(std::move(decoder)),
        scheduler_({.vocabulary = options.config.vocabulary,
                    .max_positions = options.config.max_positions,
                    .max_running = options.max_running,
                    .max_waiting = options.max_waiting,
                    .max_waiting_tokens = options.max_waiting_tokens,
                    .max_step_tokens = options.max_step_tokens,
                    .kv_pages = kv_pages,
                    .page_tokens = options.page_tokens,
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
  void Run();
  bool AwaitWork() EXCLUDES(mu_);
  void RunStep() EXCLUDES(mu_);
  Result<Decoder::Draws> Compute(Scheduler::Step step);
  void FailStep(const Status& why, std::vector<Delivery>& deliveries) REQUIRES(mu_);
  void Deliver(const std::vector<Delivery>& deliveries) EXCLUDES(mu_);
  void RunCritical(SafePoints::Call& call) REQUIRES(mu_);
  bool Idle() const REQUIRES(mu_) {
    return !stepping_ && !safe_points_.critical_running() && !scheduler_.HasWork(clock_.Now());
  }

  Clock& clock_;
  CacheRegistry* const caches_;  // may be null
  const KvPolicy kv_policy_;
  const bool drains_;
  const std::vector<int> cores_;
  StagingThrottle* const staging_;  // may be null
  const std::string device_;
  const std::int64_t kv_pages_;
  const std::unique_ptr<KvCache> cache_;  // may be null
  const std::unique_ptr<Decoder> decoder_;
  AcquireStepWeights acquire_;  // Set before started_, constant after.

  mutable Mutex mu_;  // Never held across a forward pass, a critical section or a call to a sink.
  CondVar changed_;
  Scheduler scheduler_ GUARDED_BY(mu_);
  SafePoints safe_points_ GUARDED_BY(mu_);
  bool started_ GUARDED_BY(mu_) = false;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool stepping_ GUARDED_BY(mu_) = false;  // between AwaitWork and the end of the step
  std::uint64_t steps_ GUARDED_BY(mu_) = 0;
  std::uint64_t last_id_ GUARDED_BY(mu_) = 0;
  Status broken_ GUARDED_BY(mu_);  // Decoder::health

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
  if (!broken_.ok()) return Status::Unavailable(broken_.reason(), broken_.message());
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
          .kv_pages_total = kv_pages_,
          .prefix_entries = scheduler_.prefix_entries(),
          .kv_policy = kv_policy_,
          .flip_gaps = scheduler_.flip_gaps(),
          .steps = steps_,
          .tokens = scheduler_.tokens(),
          .device = device_};
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
  PinToCores(cores_);
  while (AwaitWork()) RunStep();
  decoder_->Stop();
  std::vector<Delivery> deliveries;
  {
    MutexLock lock(mu_);
    scheduler_.FinishAll(FinishReason::kCancelled, Status::Cancelled("engine_stopping"), deliveries);
    safe_points_.DecodingEnded(clock_.Now());
    changed_.NotifyAll();
  }
  Deliver(deliveries);
}

// True when a step is to begin, false when the engine stops.
bool Engine::AwaitWork() {
  MutexLock lock(mu_);
  while (!stopping_) {
    if (SafePoints::Call* call = safe_points_.Due(steps_, Idle())) {
      RunCritical(*call);
    } else if (scheduler_.HasWork(clock_.Now()) && !safe_points_.critical_running()) {
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
  const TimePoint due = clock_.Now();
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
    if (safe_points_.StepBegan(due, clock_.Now())) changed_.NotifyAll();
  }
  weights.reset();  // the step holds it as long as it computes with it
  const TimePoint began = clock_.Now();
  const std::int64_t rows = DecodingRows(step);
  const bool computes = std::ranges::any_of(step.passes, [](const auto& pass) { return !pass.rows.empty(); });
  const Result<Decoder::Draws> sampled = Compute(std::move(step));
  if (staging_ != nullptr && rows > 0) staging_->StepTook(rows, clock_.Now() - began);
  {
    MutexLock lock(mu_);
    if (sampled.ok()) {
      scheduler_.FinishStep(*sampled, clock_.Now(), deliveries);
    } else {
      FailStep(sampled.status(), deliveries);
    }
    if (computes) ++steps_;
    stepping_ = false;
    changed_.NotifyAll();
  }
  Deliver(deliveries);
}

// Answers the wishes of all passes, in order.
Result<Decoder::Draws> Engine::Compute(Scheduler::Step step) {
  Decoder::Draws answers;
  RETURN_IF_ERROR(decoder_->CopyPages(step.copies));
  for (Scheduler::Pass& pass : step.passes) {
    if (pass.rows.empty()) {
      pass.weights.reset();  // a session may be waiting for the lease
      continue;
    }
    ASSIGN_OR_RETURN(Decoder::Draws draws, decoder_->Step(pass.rows, pass.wishes, std::move(pass.weights)));
    std::ranges::move(draws, std::back_inserter(answers));
  }
  return answers;
}

// A device that can go on takes the next requests; one that cannot takes none any more.
void Engine::FailStep(const Status& why, std::vector<Delivery>& deliveries) {
  LogWarn("step_failed", "reason={} message={}", why.reason(), why.message());
  broken_ = decoder_->health();
  if (broken_.ok()) return scheduler_.FailStep(why, deliveries);
  LogError("decoder_broken", "reason={} message={}", broken_.reason(), broken_.message());
  scheduler_.FinishAll(FinishReason::kFailed, broken_, deliveries);
}

void Engine::Deliver(const std::vector<Delivery>& deliveries) {
  for (const Delivery& delivery : deliveries) {
    delivery.Tell();
    if (!delivery.token || !delivery.sink->Full()) continue;
    MutexLock lock(mu_);
    scheduler_.Cancel(delivery.request, Status::ResourceExhausted("slow_reader", "its output is not read"));
  }
}

Result<SafePoint> Engine::RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                         Deadline deadline) {
  MutexLock lock(mu_);
  if (stopping_) return Status::Cancelled("engine_stopping");
  SafePoints::Call call{.at_step = at_step, .critical = &critical, .result = {}};
  safe_points_.Add(call);
  changed_.NotifyAll();
  while (call.state != SafePoints::Call::State::kDone) {
    const bool waiting = call.state == SafePoints::Call::State::kWaiting;
    if (waiting && stopping_) {
      safe_points_.Remove(call);
      return Status::Cancelled("engine_stopping");
    }
    if (waiting && Idle()) {
      RunCritical(call);  // nothing decodes: no need to wait for the scheduler to wake
    } else if (waiting && deadline.Passed(clock_)) {
      safe_points_.Remove(call);
      return Status::DeadlineExceeded("deadline", fmt::format("at_step={} next_step={}", at_step, steps_));
    } else {
      // Once it runs it is short, and its end is waited for.
      clock_.WaitUntil(changed_, mu_, waiting ? deadline.point() : clock_.Now() + kIdleWait);
    }
  }
  return call.result;
}

void Engine::RunCritical(SafePoints::Call& call) {
  safe_points_.Begin(call, /*decoding=*/scheduler_.running() > 0, clock_.Now());
  mu_.Unlock();
  (*call.critical)();
  mu_.Lock();
  safe_points_.End(call, steps_, clock_.Now());
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

}  // namespace

Result<std::unique_ptr<DecodeEngine>> DecodeEngine::Create(DecodeOptions options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const ModelConfig& config = options.config;
  ASSIGN_OR_RETURN(const RankShape shape, RankShapeOf(config, options.tensors, options.ranks));
  const KvShape kv_shape{.layers = config.layers,
                         .kv_heads = shape.kv_heads,
                         .head_size = config.head_size,
                         .page_tokens = options.page_tokens,
                         .ranks = shape.ranks};
  const std::int64_t pages = KvPageCount(options, kv_shape);
  std::vector<WeightType> weight_types;
  for (const DType dtype : options.dtypes) weight_types.push_back(WeightTypeOf(dtype));
  DecoderOptions decoder_options{.config = config,
                                 .tensors = options.tensors,
                                 .shape = shape,
                                 .weight_type = WeightTypeOf(options.dtype),
                                 .weight_types = std::move(weight_types),
                                 .threads = options.threads,
                                 .max_rows = options.max_step_tokens,
                                 .max_logits = std::min(options.max_running, options.max_step_tokens),
                                 .cores = options.cores,
                                 .fast = options.fast};
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Decoder> decoder;
  if (options.devices.empty()) {
    ASSIGN_OR_RETURN(cache, KvCache::Create(kv_shape, pages));
    ASSIGN_OR_RETURN(decoder, HostDecoder::Create(std::move(decoder_options), *cache));
  } else {
    ASSIGN_OR_RETURN(
        decoder, DeviceDecoder::Create(std::move(decoder_options), options.devices, kv_shape, pages, *options.clock));
  }
  return std::unique_ptr<DecodeEngine>(new Engine(options, pages, std::move(cache), std::move(decoder)));
}

}  // namespace bascule
