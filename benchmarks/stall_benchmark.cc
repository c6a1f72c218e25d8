#include <algorithm>
#include <thread>

#include "base/mutex.h"
#include "base/worker.h"
#include "benchmarks/bench_model.h"
#include "benchmarks/decode_benchmarks.h"
#include "benchmarks/local_engine.h"
#include "benchmarks/measure.h"

namespace bascule {
namespace {

constexpr double kStallLimitUs = 1000;
constexpr int kRequests = 4;
constexpr int kTokensOfRequest = 64;
constexpr int kTriesOfFlip = 20;  // a flip that meets no running request stalls nothing, and does not count
constexpr Duration kLookAgain = std::chrono::seconds(1);

// Keeps so many requests decoding. Thread-safety: thread-safe.
class Load {
 public:
  Load(DecodeEngine& engine, int requests)
      : engine_(engine),
        endings_(std::make_shared<Endings>()),
        worker_("load", [this, requests](std::stop_token stop) { Keep(requests, stop); }) {}
  // Requests that the engine refused or could not go on with are nothing to measure.
  Status status() const { return endings_->status(); }

 private:
  // Shared with the engine, which keeps it until a request's end has been told.
  class Endings final : public GenerateSink {
   public:
    void OnToken(const GeneratedToken&) override {}
    void OnFinish(FinishReason reason, const Status& why) override EXCLUDES(mu_) {
      End(reason == FinishReason::kFailed ? why : OkStatus());
    }
    void End(const Status& why) EXCLUDES(mu_) {
      MutexLock lock(mu_);
      if (status_.ok()) status_ = why;
      ++count_;
      changed_.NotifyAll();
    }
    void Wake() EXCLUDES(mu_) {
      MutexLock lock(mu_);
      changed_.NotifyAll();
    }
    // Returns how many requests have ended, once it is not `seen` or soon after.
    int AwaitMoreThan(int seen) EXCLUDES(mu_) {
      MutexLock lock(mu_);
      if (count_ == seen) Clock::Real().WaitUntil(changed_, mu_, Clock::Real().Now() + kLookAgain);
      return count_;
    }
    Status status() const EXCLUDES(mu_) {
      MutexLock lock(mu_);
      return status_;
    }

   private:
    mutable Mutex mu_;
    CondVar changed_;
    int count_ GUARDED_BY(mu_) = 0;
    Status status_ GUARDED_BY(mu_);
  };

  void Keep(int requests, const std::stop_token& stop) {
    std::stop_callback wake(stop, [this] { endings_->Wake(); });
    int ended = 0;
    for (int submitted = 0; !stop.stop_requested() && endings_->status().ok();) {
      for (; submitted - ended < requests; ++submitted) {
        const auto request =
            engine_.Submit({.prompt = {1, 2, 3, 4}, .max_new_tokens = kTokensOfRequest, .stop = {}}, endings_);
        if (!request.ok()) endings_->End(request.status());
      }
      ended = endings_->AwaitMoreThan(ended);
    }
  }

  DecodeEngine& engine_;
  const std::shared_ptr<Endings> endings_;
  Worker worker_;
};

// Stalls of `flips` flips, each of a version published while requests decode.
Result<std::vector<double>> StallsUs(std::int64_t model_bytes, int flips) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ASSIGN_OR_RETURN(const auto engine, LocalEngine::Create(ModelOfAbout(model_bytes), threads));
  const Load load(engine->decode(), kRequests);
  std::vector<double> stalls;
  for (int round = 0; std::cmp_less(stalls.size(), flips); ++round) {
    if (round == kTriesOfFlip * flips) return Status::Internal("nothing_decodes", "flips meet no running request");
    ASSIGN_OR_RETURN(const PublishReport report, engine->trainer().PublishAndReport());
    RETURN_IF_ERROR(load.status());
    const FlipReport& flip = report.replicas[0].flip;
    if (flip.kv.recomputed > 0) stalls.push_back(flip.flip_stall_us);
  }
  return stalls;
}

Result<BenchmarkRow> RowOf(std::int64_t model_bytes, int flips) {
  ASSIGN_OR_RETURN(std::vector<double> stalls, StallsUs(model_bytes, flips));
  return BenchmarkRow{fmt::format("stall_shadow_{:.1f}GB", static_cast<double>(model_bytes) / 1e9),
                      QuantileOf(std::move(stalls), 0.99), "us", kStallLimitUs,
                      "p99 that is promised, whatever the model's size"};
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunStallBenchmark(const BenchmarkScale& scale) {
  std::vector<BenchmarkRow> rows;
  for (const std::int64_t model_bytes : {scale.model_bytes / 12, scale.model_bytes}) {
    ASSIGN_OR_RETURN(BenchmarkRow row, RowOf(model_bytes, scale.flips));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bascule
