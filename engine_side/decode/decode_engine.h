// Stage: decode (flip -> [decode])
//
// Serves rollouts from the live weights: continuous batching over a paged key/value cache, on one scheduler thread, a
// thread for each further tensor-parallel engine rank, and workers for the matrix products. Each step leases the live
// version once for all ranks, runs every scheduled token through the model, and samples. Between two steps, when no
// rank computes, lies the safe point at which a flip happens; running requests are then recomputed: their KV state is
// dropped, their tokens so far are prefilled under the new version, and they go on from the same token.
//
// A request is admitted, first come first served, when its worst case of KV pages is free, and keeps them until it
// ends: nothing is preempted and nothing can deadlock.
//
// Numerics "exact": each output element's reduction order depends only on the reduction length, and random numbers on
// (seed, absolute token position), for a given number of ranks: a request's tokens and log-probabilities are the same,
// to the bit, alone or in any batch, cold or recomputed. Between two numbers of ranks they differ by rounding.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/weight_lease.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;  // 1.. tokens, each in the vocabulary
  std::int32_t max_new_tokens = 16;
  float temperature = 0;  // 0: greedy
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop;  // ends after one of these was generated
};

// One generated token. `logprob` is of the untempered distribution: log softmax of the logits.
struct GeneratedToken {
  std::int32_t id = 0;
  float logprob = 0;
  std::uint64_t version = 0;   // number of the version whose weights made it
  std::uint64_t kv_epoch = 0;  // oldest version whose weights made any KV state it read
};

// kFailed: the weights gave logits that are not finite ("logits_not_finite"), or are gone ("nothing_live").
enum class FinishReason { kLength, kStop, kCancelled, kFailed };
std::string_view FinishName(FinishReason reason);  // "length" "stop" "cancelled" "failed"

// Receives a request's output. Called from the scheduler thread, never blocks it: hand over and return.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  virtual void OnToken(const GeneratedToken& token) = 0;
  virtual void OnFinish(FinishReason reason, const Status& why) = 0;  // once, last
};

struct DecodeOptions {
  ModelConfig config;
  EngineTensors tensors;
  DType dtype = DType::kBf16;          // of the weights: kBf16 or kF32
  int ranks = 1;                       // tensor-parallel engine ranks; `tensors` are those of each
  int threads = 2;                     // of all ranks together
  std::int64_t kv_pages = 0;           // 0: enough for max_running requests of max_positions, at most 1 GiB in all
  std::int32_t page_tokens = 16;       // a multiple of 16
  std::int32_t max_running = 64;       // requests that decode at once
  std::int32_t max_waiting = 4096;     // beyond: refused
  std::int32_t max_step_tokens = 256;  // tokens of one step, prefill included
  Clock* clock = &Clock::Real();
};

struct DecodeStatus {
  std::int64_t running = 0, waiting = 0;
  std::int64_t kv_pages_used = 0, kv_pages_total = 0;
  std::uint64_t steps = 0, tokens = 0;  // since start
};

// As EngineHooks: while requests run, `critical` runs on the scheduler thread between two steps, otherwise at once on
// the caller's. SafePoint::stall is the time by which the gap between the two steps grew: from where the scheduler
// would have begun the next step to where it goes on. Recomputation is not in it: those are steps, and KvReport counts
// their tokens. RunAtSafePoint is not called from a sink, which runs on the scheduler thread.
class DecodeEngine : public EngineHooks {
 public:
  // Leases come from `acquire_live` (WeightReceiver::AcquireLive); an empty lease means that nothing is live yet.
  //
  // InvalidArgument "bad_options"; ResourceExhausted "kv_memory"
  static Result<std::unique_ptr<DecodeEngine>> Create(DecodeOptions options);
  // Once. Starts the scheduler. Until then nothing decodes and every moment is a safe point.
  virtual void Start(std::function<WeightLease()> acquire_live) = 0;

  // `sink` is kept until OnFinish has returned.
  //
  // InvalidArgument   "bad_request"   empty prompt, token outside the vocabulary, more tokens than the model's
  // positions,
  //                                   nothing to generate, a temperature that is negative or not finite
  // ResourceExhausted "queue_full" | "request_too_large" (more KV pages than there are)
  // Unavailable       "nothing_live" | "engine_stopping"
  virtual Result<std::uint64_t> Submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink) = 0;
  // The request ends with kCancelled before its next step. Unknown ids are ignored.
  virtual void Cancel(std::uint64_t request) = 0;
  virtual DecodeStatus status() const = 0;
  // Finishes nothing: all requests end with kCancelled. Not called from a sink.
  virtual void Stop() = 0;
};

}  // namespace bascule
