// Which tokens go through the model in the next step, and what a flip does to them: continuous batching as a plain
// state machine, without threads, clocks or weights of its own.
//
// Clients take turns (AdmissionQueue). The request whose turn it is waits until its worst case of KV pages (prompt and
// max_new_tokens, less what it shares) is free and fewer than max_running requests run; none overtakes it, however many
// smaller ones there are, unless it waits for a version (min_start_version). It keeps those pages until it ends or is
// recomputed, so a running request never lacks one, none is preempted, and every request ends: no deadlock.
//
// A step takes one row of each request that decodes, oldest first, and fills up, to max_step_tokens, with prompts in
// chunks. Up to half of that room goes to prompts that lack less than the oldest one does, so that a long prompt holds
// up no short one; the oldest has the rest, so that short ones never hold it up either.
//
// Where a running request is about to have state that the next one can share, that one waits for it, and other clients'
// go on: of many samples of one prompt the first prefills it.
//
// At a flip every running request goes the way of its KvPolicy. A request remembers the version its KV state was made
// by: were the invalidation forgotten, the next step would find out and make up for it. Requests that are recomputed
// give their pages back and are the first to be admitted again.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "bridge/session/messages.h"
#include "engine_side/decode/admission_queue.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/decode/delivery.h"
#include "engine_side/decode/kv_pages.h"
#include "engine_side/decode/kv_state.h"
#include "engine_side/decode/prefix_cache.h"
#include "engine_side/decode/step.h"
#include "engine_side/decode/step_weights.h"
#include "kernels/sample.h"

namespace bascule {

struct SchedulerLimits {
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;
  std::int64_t max_running = 0;
  std::int64_t max_waiting = 0;
  std::int64_t max_waiting_tokens = std::int64_t{1} << 24;
  std::int64_t max_step_tokens = 0;
  std::int64_t kv_pages = 0;
  std::int64_t page_tokens = 0;
  KvPolicy kv_policy = KvPolicy::kRecompute;
  Duration time_limit = std::chrono::hours(1);
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits)
      : limits_(limits),
        pages_(limits.kv_pages),
        prefixes_(pages_, limits.page_tokens),
        waiting_({.requests = limits.max_waiting, .tokens = limits.max_waiting_tokens}) {}

  // InvalidArgument "bad_request"; ResourceExhausted "queue_full" | "request_too_large"
  Status Submit(std::uint64_t id, GenerateRequest request, std::shared_ptr<GenerateSink> sink, TimePoint now);
  // The request ends before its next step. Unknown ids are ignored.
  void Cancel(std::uint64_t id, Status why = Status::Cancelled("cancelled"));

  // The tokens of requests that run under one version. Its rows point into the scheduler's state and hold until
  // FinishStep.
  struct Pass {
    std::shared_ptr<StepWeights> weights;
    std::vector<StepRow> rows;
    std::vector<SampleWish> wishes;  // one for each row that wants logits, in order
  };
  // Copies come first, in their order, then the passes: the live version's is the first, and may have no rows.
  struct Step {
    std::vector<PageCopy> copies;
    std::vector<Pass> passes;
  };
  // The next step under `live`. Requests that end without another token are told through `deliveries`.
  Step BeginStep(const std::shared_ptr<StepWeights>& live, TimePoint now, std::vector<Delivery>& deliveries);
  // `sampled` answers the wishes of the step begun last, pass by pass.
  void FinishStep(const std::vector<std::optional<SampledToken>>& sampled, TimePoint now,
                  std::vector<Delivery>& deliveries);

  // The step begun last has failed: every request that runs ends, and what it has of state is shared with none.
  void FailStep(const Status& why, std::vector<Delivery>& deliveries);

  // The live version changes to `live`: decides what becomes of every running request. O(requests); pages come back
  // with the next BeginStep.
  KvReport Invalidate(const WeightVersion& live);
  // Ends every request.
  void FinishAll(FinishReason reason, const Status& why, std::vector<Delivery>& deliveries);

  // Whether a step would do anything at `now`.
  bool HasWork(TimePoint now) const;
  // When the next request's time is over.
  std::optional<TimePoint> NextDeadline() const;
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return waiting_.requests() + std::ssize(restarted_); }
  std::uint64_t tokens() const { return tokens_; }
  std::int64_t pages_used() const { return pages_.used(); }
  std::int64_t prefix_entries() const { return prefixes_.entries(); }
  std::size_t clients() const { return waiting_.clients(); }
  const LatencyHistogram& flip_gaps() const { return flip_gaps_; }

 private:
  struct Ending {
    FinishReason reason = FinishReason::kCancelled;
    Status why;
  };
  struct Request {
    Request(KvPages& pages, PrefixCache& prefixes, std::int64_t page_tokens) : kv(pages, prefixes, page_tokens) {}
    std::uint64_t id = 0;
    GenerateRequest asked;
    KvPolicy policy = KvPolicy::kRecompute;
    std::shared_ptr<GenerateSink> sink;  // null once it has ended
    TimePoint deadline;
    std::vector<std::int32_t> tokens;     // the prompt and what was generated
    KvState kv;                           // open while it runs
    std::shared_ptr<StepWeights> drain;   // with kDrain, while it runs: the version that it stays with
    std::optional<WeightVersion> oldest;  // of the versions that made its tokens
    std::vector<float> prompt_logprobs;
    bool prompt_told = false;
    bool restart = false;          // its KV state is to be dropped
    std::optional<Ending> ending;  // it ends before its next step
    std::int64_t rows = 0;         // of the step that runs
    std::size_t pass = 0;          // that they are in
    bool admitted = false;         // once, at least
    std::optional<TimePoint> last_token_at;
    bool flipped = false;  // since then

    std::int64_t prompt_size() const { return static_cast<std::int64_t>(asked.prompt.size()); }
    std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size()) - prompt_size(); }
    std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - kv.cached(); }
    bool ScoresPrompt() const { return asked.prompt_logprobs && !prompt_told; }
  };
  using Owned = std::unique_ptr<Request>;
  struct Wisher {
    Request* request = nullptr;
    bool of_prompt = false;  // scores a token of the prompt
  };
  // What is to be remembered of a pass until FinishStep.
  struct PassUnderWay {
    WeightVersion version;
    std::vector<Wisher> wishers;
  };

  // Before the step: ends what is to end, takes back what is to be recomputed, admits.
  void EndDue(TimePoint now, std::vector<Delivery>& deliveries);
  void SettleFlip();
  void Admit(const std::shared_ptr<StepWeights>& live, Step& step);
  Request* NextToAdmit(const std::shared_ptr<StepWeights>& live, std::size_t skip);
  KvState::Opened Open(Request& request, const std::shared_ptr<StepWeights>& live, Step& step);
  void Run(Request& request);
  void Unpark();

  // Room in the step that is being made.
  struct Room {
    std::int64_t rows = 0, logits = 0;
  };
  void AddPass(std::shared_ptr<StepWeights> weights, Step& step);
  std::size_t PassOf(const Request& request, Step& step);
  void AddPrompts(Room& room, Step& step);
  void AddRows(Request& request, std::int64_t most, Room& room, Step& step);

  // What a flip does to a running request.
  void ApplyPolicy(Request& request, const WeightVersion& live, KvReport& report);
  void EndAsStale(Request& request, const WeightVersion& live, KvReport& report);
  static bool TooStale(const Request& request, const WeightVersion& live);

  // After the step.
  void TakeSampled(const Wisher& wisher, const WeightVersion& version, const std::optional<SampledToken>& sampled,
                   TimePoint now, std::vector<Delivery>& deliveries);
  void TakeToken(Request& request, const WeightVersion& version, const SampledToken& sampled, TimePoint now,
                 std::vector<Delivery>& deliveries);
  void TellPrompt(Request& request, const WeightVersion& version, std::vector<Delivery>& deliveries);
  void Finish(Request& request, FinishReason reason, Status why, std::vector<Delivery>& deliveries);

  const SchedulerLimits limits_;
  KvPages pages_;
  PrefixCache prefixes_;
  AdmissionQueue<Owned> waiting_;
  std::vector<Owned> parked_;                                // wait for a version, and are counted in waiting_
  std::deque<Owned> restarted_;                              // go before those that wait
  std::vector<Owned> running_;                               // in the order of their admission
  std::unordered_map<std::uint64_t, Request*> by_id_;        // of all four
  std::set<std::pair<TimePoint, std::uint64_t>> deadlines_;  // likewise
  std::vector<PassUnderWay> under_way_;                      // of the step that runs
  std::optional<WeightVersion> live_;                        // at the last step or flip
  bool any_ending_ = false;
  bool unsettled_ = false;  // a flip has left work for the next step
  std::uint64_t tokens_ = 0;
  LatencyHistogram flip_gaps_;
};

}  // namespace bascule
