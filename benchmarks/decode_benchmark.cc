#include <algorithm>
#include <random>
#include <thread>

#include "base/mutex.h"
#include "base/worker.h"
#include "benchmarks/bench_model.h"
#include "benchmarks/decode_benchmarks.h"
#include "benchmarks/local_engine.h"
#include "benchmarks/measure.h"

#if defined(BASCULE_ONEDNN)
#include "kernels/onednn/onednn_gemm.h"
#endif

namespace bascule {
namespace {

constexpr int kTokens = 17;
constexpr int kBatches[] = {1, 4, 16};
constexpr std::size_t kPromptTokens = 512;
constexpr Duration kPatience = std::chrono::minutes(2);

// When the first tokens of some requests that run at once came, and when the last ones did. Thread-safety: thread-safe.
class TokenTimes final : public GenerateSink {
 public:
  explicit TokenTimes(int requests) : running_(requests), without_token_(requests) {}
  void OnPrompt(const PromptReport&) override {
    MutexLock lock(mu_);
    if (--without_token_ == 0) decoding_since_ = Clock::Real().Now();
  }
  void OnToken(const GeneratedToken&) override {}
  void OnFinish(FinishReason reason, const Status& why) override {
    MutexLock lock(mu_);
    if (reason != FinishReason::kLength) why_ = Status::Internal("decode_failed", why.ToString());
    if (--running_ == 0) ended_ = Clock::Real().Now();
    changed_.NotifyAll();
  }
  Status AwaitEnd(Deadline deadline) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (running_ > 0) {
      if (deadline.Passed(Clock::Real())) return Status::DeadlineExceeded("deadline", "the requests do not end");
      Clock::Real().WaitUntil(changed_, mu_, deadline.point());
    }
    return why_;
  }
  // After the end: since every request has its first token.
  double DecodingSeconds() const {
    MutexLock lock(mu_);
    return std::chrono::duration<double>(ended_ - decoding_since_).count();
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  int running_ GUARDED_BY(mu_), without_token_ GUARDED_BY(mu_);
  TimePoint decoding_since_ GUARDED_BY(mu_), ended_ GUARDED_BY(mu_);
  Status why_ GUARDED_BY(mu_);
};

// Of a step in which `batch` requests get their next token each.
Result<double> SecondsOfStep(DecodeEngine& engine, int batch) {
  const auto times = std::make_shared<TokenTimes>(batch);
  for (int i = 0; i < batch; ++i) {
    RETURN_IF_ERROR(engine.Submit({.prompt = {1, 2, 3, 4 + i}, .max_new_tokens = kTokens}, times).status());
  }
  RETURN_IF_ERROR(times->AwaitEnd(Deadline::After(Clock::Real(), kPatience)));
  return times->DecodingSeconds() / (kTokens - 1);
}

// From a prompt that shares no state with another to its first token.
class Prefill {
 public:
  Prefill(DecodeEngine& engine, std::int64_t vocabulary)
      : engine_(engine), token_(0, static_cast<std::int32_t>(vocabulary - 1)) {}
  Result<double> operator()() {
    std::vector<std::int32_t> prompt(kPromptTokens);
    for (std::int32_t& token : prompt) token = token_(random_);
    const auto times = std::make_shared<TokenTimes>(1);
    const TimePoint begin = Clock::Real().Now();
    RETURN_IF_ERROR(engine_.Submit({.prompt = std::move(prompt), .max_new_tokens = 1}, times).status());
    RETURN_IF_ERROR(times->AwaitEnd(Deadline::After(Clock::Real(), kPatience)));
    return std::chrono::duration<double>(Clock::Real().Now() - begin).count();
  }

 private:
  DecodeEngine& engine_;
  std::mt19937 random_;
  std::uniform_int_distribution<std::int32_t> token_;
};

// On `threads` threads, each its part.
void OnThreads(int threads, const std::function<void(int thread)>& work) {
  std::vector<Worker> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back("limit", [&work, i](std::stop_token) { work(i); });
  }
}

void ReadMemoryOn(int threads, std::span<const std::byte> bytes) {
  const std::size_t share = bytes.size() / static_cast<std::size_t>(threads);
  OnThreads(threads, [&](int i) { ReadMemory(bytes.subspan(static_cast<std::size_t>(i) * share, share)); });
}

// Of all matrices that a token of a prompt meets: all but the embedding.
double MultiplyAddsOfToken(const ModelConfig& config) {
  const std::int64_t attention = (2 * config.query_heads + 2 * config.kv_heads) * config.head_size;
  return static_cast<double>(config.layers * config.hidden * (attention + 3 * config.ffn));
}

// What an engine does in turn: every batch, then the prompt.
void AddContenders(DecodeEngine& engine, const ModelConfig& config, std::vector<Measured>& contenders) {
  for (const int batch : kBatches) {
    contenders.push_back([&engine, batch] { return SecondsOfStep(engine, batch); });
  }
  contenders.push_back(Prefill(engine, config.vocabulary));
}

// The rows of numerics "fast", each beside the same under "exact". Results of both come in the order of AddContenders.
void AddFastRows(std::span<const double> exact, std::span<const double> fast, std::vector<BenchmarkRow>& rows) {
  for (std::size_t i = 0; i < std::size(kBatches); ++i) {
    const double batch = kBatches[i];
    rows.push_back({fmt::format("decode_batch{}_fast", kBatches[i]), batch / fast[i], "tokens/s", batch / exact[i],
                    "exact numerics"});
  }
  rows.push_back(
      {"prefill_512_fast", kPromptTokens / fast.back(), "tokens/s", kPromptTokens / exact.back(), "exact numerics"});
}

// Null where there is none.
Result<std::unique_ptr<FastGemm>> FastGemmOfThisBuild() {
#if defined(BASCULE_ONEDNN)
  auto gemm = MakeOneDnnGemm();
  if (gemm.ok() || gemm.status().reason() != "numerics_unsupported") return gemm;
#endif
  return std::unique_ptr<FastGemm>();
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunDecodeBenchmark(const BenchmarkScale& scale) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const ModelConfig config = ModelOfAbout(scale.model_bytes * 5 / 12);
  ASSIGN_OR_RETURN(const auto fast_gemm, FastGemmOfThisBuild());
  ASSIGN_OR_RETURN(const auto exact, LocalEngine::Create(config, {.threads = threads}));
  ASSIGN_OR_RETURN(const auto fast, LocalEngine::Create(config, {.threads = threads, .fast = fast_gemm.get()}));
  const std::span<const std::byte> weights = exact->trainer().weights();  // the head is tied: a token reads them all
  constexpr std::int64_t kMultiplyAdds = 1 << 28;
  std::vector<Measured> contenders = {
      [&] { return SecondsOf([&] { ReadMemoryOn(threads, weights); }); },
      [&] { return SecondsOf([&] { OnThreads(threads, [](int) { MultiplyAdd(kMultiplyAdds); }); }); }};
  AddContenders(exact->decode(), config, contenders);
  if (fast_gemm != nullptr) AddContenders(fast->decode(), config, contenders);

  ASSIGN_OR_RETURN(const std::vector<double> seconds, MedianSeconds(contenders, scale.rounds));

  const std::size_t each = std::size(kBatches) + 1;
  const std::span<const double> of_exact = std::span(seconds).subspan(2, each);
  std::vector<BenchmarkRow> rows;
  for (std::size_t i = 0; i < std::size(kBatches); ++i) {
    const double batch = kBatches[i];
    rows.push_back({fmt::format("decode_batch{}", kBatches[i]), batch / of_exact[i], "tokens/s", batch / seconds[0],
                    fmt::format("weights read once a step, {} threads", threads)});
  }
  const double rate = static_cast<double>(kMultiplyAdds * threads) / seconds[1];
  rows.push_back({"prefill_512", kPromptTokens / of_exact.back(), "tokens/s", rate / MultiplyAddsOfToken(config),
                  fmt::format("fp32 multiply-adds in registers, {} threads", threads)});
  if (fast_gemm != nullptr) AddFastRows(of_exact, std::span(seconds).subspan(2 + each), rows);
  return rows;
}

}  // namespace bascule
