#include <thread>

#include "base/mutex.h"
#include "base/worker.h"
#include "benchmarks/bench_model.h"
#include "benchmarks/decode_benchmarks.h"
#include "benchmarks/local_engine.h"
#include "benchmarks/measure.h"

namespace bascule {
namespace {

constexpr int kTokens = 17;
constexpr Duration kPatience = std::chrono::minutes(2);

// When the first token came and when the last did. Thread-safety: thread-safe.
class TokenTimes final : public GenerateSink {
 public:
  void OnToken(const GeneratedToken&) override {
    MutexLock lock(mu_);
    last_ = Clock::Real().Now();
    if (!first_) first_ = last_;
  }
  void OnFinish(FinishReason reason, const Status& why) override {
    MutexLock lock(mu_);
    finish_ = reason;
    why_ = why;
    changed_.NotifyAll();
  }
  // Seconds for each token after the first, which prefill makes.
  Result<double> AwaitSecondsOfToken(Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!finish_) {
      if (deadline.Passed(Clock::Real())) return Status::DeadlineExceeded("deadline", "the request does not end");
      Clock::Real().WaitUntil(changed_, mu_, deadline.point());
    }
    if (*finish_ != FinishReason::kLength) return Status::Internal("decode_failed", why_.ToString());
    return std::chrono::duration<double>(last_ - *first_).count() / (kTokens - 1);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<TimePoint> first_ GUARDED_BY(mu_);
  TimePoint last_ GUARDED_BY(mu_);
  std::optional<FinishReason> finish_ GUARDED_BY(mu_);
  Status why_ GUARDED_BY(mu_);
};

Result<double> SecondsOfToken(DecodeEngine& engine) {
  const auto times = std::make_shared<TokenTimes>();
  RETURN_IF_ERROR(engine.Submit({.prompt = {1, 2, 3, 4}, .max_new_tokens = kTokens, .stop = {}}, times).status());
  return times->AwaitSecondsOfToken(Deadline::After(Clock::Real(), kPatience));
}

void ReadMemoryOn(int threads, std::span<const std::byte> bytes) {
  const std::size_t share = bytes.size() / static_cast<std::size_t>(threads);
  std::vector<Worker> workers;
  for (int i = 0; i < threads; ++i) {
    const std::span<const std::byte> own = bytes.subspan(static_cast<std::size_t>(i) * share, share);
    workers.emplace_back("read", [own](std::stop_token) { ReadMemory(own); });
  }
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunDecodeBenchmark(const BenchmarkScale& scale) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ASSIGN_OR_RETURN(const auto engine,
                   LocalEngine::Create(ModelOfAbout(scale.model_bytes * 5 / 12), {.threads = threads}));
  const std::span<const std::byte> weights = engine->trainer().weights();  // the head is tied: a token reads them all
  const Measured contenders[] = {
      [&] { return SecondsOfToken(engine->decode()); },
      [&] { return SecondsOf([&] { ReadMemoryOn(threads, weights); }); },
  };

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  return std::vector<BenchmarkRow>{{"decode_batch1", GigabytesPerSecond(weights.size(), seconds[0]), "GB/s",
                                    GigabytesPerSecond(weights.size(), seconds[1]),
                                    fmt::format("memory read, the same {} threads", threads)}};
}

}  // namespace bascule
