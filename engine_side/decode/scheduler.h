// Which tokens go through the model in the next step: continuous batching as a plain state machine, without threads.
//
// A request waits, first come first served, until its worst case of KV pages (prompt and max_new_tokens) is free and
// fewer than max_running requests run; nothing behind it overtakes. It keeps those pages until it ends, so a running
// request never lacks one, none is preempted, and every request ends: no deadlock. A step takes one row of each request
// that decodes and fills up, to max_step_tokens, with prompts in chunks; both oldest first.
//
// A request remembers the version its KV state was made by. When the live version is another one, nothing of that state
// is read again: the request's tokens go through the model anew, as one more prefill, and it continues where it was.
//
// Thread-safety: thread-compatible (the engine guards it).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "bridge/session/messages.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/step.h"
#include "kernels/sample.h"

namespace bascule {

struct SchedulerLimits {
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;
  std::int64_t max_running = 0;
  std::int64_t max_waiting = 0;
  std::int64_t max_step_tokens = 0;
};

// Something a sink is to hear: a token, or that its request ended.
struct Delivery {
  std::shared_ptr<GenerateSink> sink;  // shared with the request: it lives until OnFinish has returned
  std::optional<GeneratedToken> token;
  FinishReason finish = FinishReason::kLength;  // without a token
  Status why;
};

class Scheduler {
 public:
  // `cache` outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, KvCache& cache) : limits_(limits), cache_(cache) {}

  // InvalidArgument "bad_request"; ResourceExhausted "queue_full" | "request_too_large"
  Status Submit(std::uint64_t id, GenerateRequest request, std::shared_ptr<GenerateSink> sink);
  void Cancel(std::uint64_t id);

  // The next step under `live`. Requests that end without another token are told through `deliveries`. The rows point
  // into the scheduler's state and hold until FinishStep.
  struct Step {
    std::vector<StepRow> rows;
    std::vector<SampleWish> wishes;  // one for each row that wants logits, in order
  };
  Step BeginStep(const WeightVersion& live, std::vector<Delivery>& deliveries);
  // `sampled` answers the wishes of the step begun last.
  void FinishStep(const std::vector<std::optional<SampledToken>>& sampled, std::vector<Delivery>& deliveries);

  // The live version changes to `live`: running requests are to be recomputed.
  KvReport Invalidate(const WeightVersion& live);
  // Ends every request.
  void FinishAll(FinishReason reason, const Status& why, std::vector<Delivery>& deliveries);

  bool HasWork() const { return !running_.empty() || !waiting_.empty(); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::uint64_t tokens() const { return tokens_; }

 private:
  struct Request {
    std::uint64_t id = 0;
    GenerateRequest asked;
    std::shared_ptr<GenerateSink> sink;
    std::vector<std::int32_t> tokens;  // the prompt and what was generated
    std::vector<std::int32_t> pages;   // none while it waits
    std::int64_t cached = 0;           // tokens whose KV state is there, made by kv_version
    WeightVersion kv_version;
    std::int64_t rows = 0;  // of the step that runs
    bool cancelled = false;
    std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - cached; }
  };

  std::int64_t WorstPages(const GenerateRequest& request) const;
  void DropCancelled(std::vector<Delivery>& deliveries);
  void Admit();
  void AddRows(Request& request, std::int64_t count, Step& step);
  // Takes the sampled token; true when the request ended.
  bool TakeToken(Request& request, const std::optional<SampledToken>& sampled, std::vector<Delivery>& deliveries);
  void Finish(Request& request, FinishReason reason, Status why, std::vector<Delivery>& deliveries);

  const SchedulerLimits limits_;
  KvCache& cache_;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_;      // in the order of their admission
  std::unordered_map<std::uint64_t, Request*> by_id_;  // of both
  std::vector<Request*> sampling_;                     // whose wishes the step that runs answers, in order
  WeightVersion live_;                                 // of the step that runs
  bool any_cancelled_ = false;
  std::uint64_t tokens_ = 0;
};

}  // namespace bascule
