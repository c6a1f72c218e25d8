#include "benchmarks/decode_load.h"

#include <optional>
#include <utility>

#include "base/clock.h"

namespace bascule {
namespace {

constexpr Duration kLookAgain = std::chrono::seconds(1);

}  // namespace

// What all requests have come to. Thread-safety: thread-safe.
class DecodeLoad::Ledger {
 public:
  void NoteToken(std::optional<Duration> gap, Duration flip_gap) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++tokens_.count;
    if (gap) tokens_.gap_ms.push_back(MsOf(*gap));
    if (flip_gap > Duration::zero()) tokens_.flip_gap_ms.push_back(MsOf(flip_gap));
  }
  void NoteEnd(const Status& why) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (status_.ok()) status_ = why;
    ++ended_;
    changed_.NotifyAll();
  }
  void Wake() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  // Returns how many requests have ended, once it is not `seen` or soon after.
  int AwaitMoreThan(int seen) EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (ended_ == seen) Clock::Real().WaitUntil(changed_, mu_, Clock::Real().Now() + kLookAgain);
    return ended_;
  }
  Tokens Take() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const TimePoint now = Clock::Real().Now();
    tokens_.seconds = std::chrono::duration<double>(now - std::exchange(since_, now)).count();
    return std::exchange(tokens_, {});
  }
  Status status() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return status_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  Tokens tokens_ GUARDED_BY(mu_);
  TimePoint since_ GUARDED_BY(mu_) = Clock::Real().Now();
  int ended_ GUARDED_BY(mu_) = 0;
  Status status_ GUARDED_BY(mu_);
};

class DecodeLoad::Request final : public GenerateSink {
 public:
  explicit Request(std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {}
  void OnToken(const GeneratedToken& token) override {
    const TimePoint now = Clock::Real().Now();
    ledger_->NoteToken(last_ ? std::optional(now - *last_) : std::nullopt, token.flip_gap);
    last_ = now;
  }
  void OnFinish(FinishReason reason, const Status& why) override {
    ledger_->NoteEnd(reason == FinishReason::kFailed ? why : OkStatus());
  }

 private:
  const std::shared_ptr<Ledger> ledger_;
  std::optional<TimePoint> last_;  // of the scheduler thread
};

DecodeLoad::DecodeLoad(DecodeEngine& engine, int requests)
    : engine_(engine),
      ledger_(std::make_shared<Ledger>()),
      worker_("load", [this, requests](std::stop_token stop) { Keep(requests, stop); }) {}

DecodeLoad::~DecodeLoad() = default;

DecodeLoad::Tokens DecodeLoad::Take() { return ledger_->Take(); }

Status DecodeLoad::status() const { return ledger_->status(); }

void DecodeLoad::Keep(int requests, const std::stop_token& stop) {
  std::stop_callback wake(stop, [this] { ledger_->Wake(); });
  int ended = 0;
  for (int submitted = 0; !stop.stop_requested() && ledger_->status().ok();) {
    for (; submitted - ended < requests; ++submitted) {
      const auto request = engine_.Submit(
          {.prompt = std::vector<std::int32_t>(kPromptTokens, 1), .max_new_tokens = kNewTokens, .stop = {}},
          std::make_shared<Request>(ledger_));
      if (!request.ok()) ledger_->NoteEnd(request.status());
    }
    ended = ledger_->AwaitMoreThan(ended);
  }
}

}  // namespace bascule
