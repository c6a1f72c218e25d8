// Stage: decode (flip -> [decode])
//
// Serves rollouts from the live weights: continuous batching over a paged key/value cache, on one scheduler thread, a
// thread for each further tensor-parallel engine rank, and workers for the matrix products. Each step leases the live
// version once for all ranks, runs every scheduled token through the model, and samples. Between two steps, when no
// rank computes, lies the safe point at which a flip happens. What becomes of a running request is its KvPolicy.
//
// A request is admitted, clients taking turns, when its worst case of KV pages is free, less the pages of a common
// beginning that it shares with others, and keeps them until it ends or is recomputed: nothing is preempted and nothing
// can deadlock. Requests that wait are bounded in number and in tokens, and every request has a deadline. What happens
// to whom and when: docs/decoding.md.
//
// Numerics "exact" (the default): each output element's reduction order depends only on the reduction length, and
// random numbers on (seed, absolute token position, sample), for a given number of ranks: a request's tokens and
// log-probabilities are the same, to the bit, alone or in any batch, cold, recomputed or over a shared beginning.
// Between two numbers of ranks they differ by rounding. Numerics "fast" (DecodeOptions::fast): products of bf16 weights
// with enough rows at once are a library's, within the bound of kernels/fast_gemm.h; results then depend on what else
// is in a step, and all that is promised "to the bit" is promised within that bound.
//
// On devices (DecodeOptions::devices) the promise is another one, of engine_side/decode/device_decoder.h: the same
// steps give the same bits, and results are the exact ones within the bound of kernels/gemm_device.h. A device that
// fails at a step ends the requests that run, with kFailed and its reason (device/device.h); once it is lost, or takes
// longer than DecodeDevices::step_deadline, every request ends so and no further one is taken.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine_side/cache_registry.h"
#include "engine_side/decode/decode_devices.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/latency_histogram.h"
#include "engine_side/staging_throttle.h"
#include "engine_side/weight_lease.h"
#include "kernels/fast_gemm.h"
#include "kernels/sample.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

// What becomes of a request that runs at a flip.
//
//   kRecompute  its KV state is dropped, its tokens so far are prefilled under the new version, and it goes on from the
//               same token
//   kDrain      it goes on under the old version to its end, beside those of the new one, and leases the old slot: a
//               session that needs the slot waits, until its own deadline ("shadow_leased")
//   kKeep       it goes on under the new version over the KV state of the old one; its tokens' kv_epoch says so
//   kAbort      it ends with kAbortedByFlip and what it has made
enum class KvPolicy { kRecompute, kDrain, kKeep, kAbort };
std::string_view KvPolicyName(KvPolicy policy);  // "recompute" "drain" "keep" "abort"
// InvalidArgument "bad_kv_policy"
Result<KvPolicy> ParseKvPolicy(std::string_view name);

struct GenerateRequest {
  std::vector<std::int32_t> prompt = {};  // 1.. tokens, each in the vocabulary
  std::int32_t max_new_tokens = 16;
  float temperature = 0;  // 0: greedy
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop = {};  // ends after one of these was generated
  std::int32_t top_k = 0;               // draws from the so many most probable tokens; 0: from all
  float top_p = 1;                      // draws from the fewest most probable tokens with this probability in all
  std::int32_t min_new_tokens = 0;      // no stop token is generated before so many others
  std::int32_t top_logprobs = 0;        // 0..kMaxTopLogprobs: beside each generated token the most probable ones
  bool prompt_logprobs = false;         // for GenerateSink::OnPrompt; the prompt then shares no one's KV state
  // Rollouts of one prompt are told apart by this number: their random numbers are their own.
  std::uint32_t sample = 0;

  std::optional<KvPolicy> kv_policy = {};  // the engine's default when not set
  // Ends the request as kTooStale at a flip to a version whose number is larger by more than this than that of the
  // oldest one that made a token of it, or that it would go on with. Versions of another run are always too old.
  std::optional<std::uint64_t> max_staleness = {};
  std::uint64_t min_start_version = 0;  // waits until a version of at least this number is live
  Duration time_limit{};                // from Submit; 0, or more than the engine's: the engine's
  // Who asks. Clients take turns (admission_queue.h). At most kMaxClientBytes.
  std::string client = {};

  friend bool operator==(const GenerateRequest&, const GenerateRequest&) = default;
};

inline constexpr std::int32_t kMaxTopLogprobs = 20;
inline constexpr std::size_t kMaxClientBytes = 128;

// One generated token. `logprob` is of the untempered distribution: log softmax of the logits.
struct GeneratedToken {
  std::int32_t id = 0;
  float logprob = 0;
  std::uint64_t version = 0;   // number of the version whose weights made it
  std::uint64_t kv_epoch = 0;  // oldest version whose weights made any KV state it read
  std::vector<TokenLogprob> top = {};
  Duration flip_gap{};  // since the token before, when a flip lay between them; otherwise 0
};

// What the prompt met, told before the first token.
struct PromptReport {
  std::int64_t shared_tokens = 0;  // whose KV state came from other requests
  std::vector<float> logprobs;     // of each prompt token but the first, when asked for
  std::uint64_t version = 0;       // that made the last of those, and the first token
  std::uint64_t kv_epoch = 0;      // oldest version that made any
};

// kTooStale: see GenerateRequest::max_staleness. kCancelled: by Cancel, or because the engine stops
// ("engine_stopping"), the time limit is over ("deadline"), or its sink is full ("slow_reader"). kFailed: the weights
// gave logits that are not finite ("logits_not_finite"), or are gone ("nothing_live"); or a device failed.
enum class FinishReason { kLength, kStop, kAbortedByFlip, kTooStale, kCancelled, kFailed };
// "length" "stop" "aborted_by_flip" "too_stale" "cancelled" "failed"
std::string_view FinishName(FinishReason reason);

// Receives a request's output. Called from the scheduler thread, never blocks it: hand over and return.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  virtual void OnPrompt(const PromptReport& /*prompt*/) {}  // at most once, before the first token
  virtual void OnToken(const GeneratedToken& token) = 0;
  virtual void OnFinish(FinishReason reason, const Status& why) = 0;  // once, last
  // Asked after OnToken: whether what it holds for its reader is more than it means to. Its request then ends.
  virtual bool Full() const { return false; }
};

struct DecodeOptions {
  ModelConfig config;
  EngineTensors tensors;
  DType dtype = DType::kBf16;       // of the weights: kBf16 or kF32
  std::vector<DType> dtypes;        // of each tensor of an engine rank, likewise; empty: all are `dtype`
  int ranks = 1;                    // tensor-parallel engine ranks; `tensors` are those of each
  int threads = 2;                  // of all ranks together
  std::int64_t kv_pages = 0;        // 0: enough for max_running requests of max_positions, at most 1 GiB in all
  std::int32_t page_tokens = 16;    // a multiple of 16
  std::int32_t max_running = 64;    // requests that decode at once
  std::int32_t max_waiting = 4096;  // beyond: refused
  std::int64_t max_waiting_tokens = std::int64_t{1} << 24;  // of their prompts, likewise
  std::int32_t max_step_tokens = 256;                       // tokens of one step, prefill included
  KvPolicy kv_policy = KvPolicy::kRecompute;                // of requests that name none
  bool drains = true;  // whether an old version stays for requests: not where flips are in place
  Duration time_limit = std::chrono::hours(1);  // of every request
  CacheRegistry* caches = nullptr;              // told of every flip; borrowed
  std::vector<int> cores = {};                  // that decoding keeps to; none: any
  StagingThrottle* staging = nullptr;           // told how long steps take; borrowed, null: nobody
  FastGemm* fast = nullptr;                     // numerics "fast"; borrowed, null: "exact"
  DecodeDevices devices = {};                   // one a rank, where weights and KV state then lie; none: the host
  Clock* clock = &Clock::Real();
};

struct DecodeStatus {
  std::int64_t running = 0, waiting = 0;
  std::int64_t kv_pages_used = 0, kv_pages_total = 0;  // used: by running requests
  std::int64_t prefix_entries = 0;                     // pages whose state new requests can share
  KvPolicy kv_policy = KvPolicy::kRecompute;           // the default
  LatencyHistogram flip_gaps;                          // between two tokens of a request where a flip lay
  std::uint64_t steps = 0, tokens = 0;                 // since start
  std::string device = "cpu";                          // DecodeDevices::Name
};

// As EngineHooks: while requests run, `critical` runs on the scheduler thread between two steps, otherwise at once on
// the caller's. SafePoint::stall is the time by which the gap between the two steps grew: from where the scheduler
// would have begun the next step to where that step computes, less what beginning a step takes otherwise.
// RunAtSafePoint returns then. Recomputation is not in it: those are steps, and KvReport counts their tokens.
// RunAtSafePoint is not called from a sink, which runs on the scheduler thread.
class DecodeEngine : public EngineHooks {
 public:
  // Leases come from `acquire_live` (WeightReceiver::AcquireLive); an empty lease means that nothing is live yet.
  //
  // InvalidArgument "bad_options"; ResourceExhausted "kv_memory"; as DeviceDecoder::Create
  static Result<std::unique_ptr<DecodeEngine>> Create(DecodeOptions options);
  // Once. Starts the scheduler. Until then nothing decodes and every moment is a safe point.
  virtual void Start(std::function<WeightLease()> acquire_live) = 0;

  // `sink` is kept until OnFinish has returned.
  //
  // InvalidArgument   "bad_request"         empty prompt, token outside the vocabulary, more tokens than the model has
  //                                         positions, nothing to generate, sampling options outside their bounds
  // ResourceExhausted "queue_full"          the client's share of the queue is full
  // ResourceExhausted "request_too_large"   more KV pages than there are
  // FailedPrecondition "drain_needs_shadow"  flips are in place
  // Unavailable       "nothing_live" | "engine_stopping"; the reason for which a device was given up
  virtual Result<std::uint64_t> Submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink) = 0;
  // The request ends with kCancelled before its next step. Unknown ids are ignored.
  virtual void Cancel(std::uint64_t request) = 0;
  virtual DecodeStatus status() const = 0;
  // Finishes nothing: all requests end with kCancelled. Not called from a sink.
  virtual void Stop() = 0;
};

}  // namespace bascule
