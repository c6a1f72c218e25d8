// An engine that is not ours: it shares nothing with engine_side/decode, and embeds WeightReceiver with five hooks.
//
// Its model is as small as can be. A token's scores for the next one are embedding x head; the next token has the most
// in sum over the last few tokens. But it has what engines have: key/value state per request, made by one version; a
// cache of prompts; a tensor that is derived from the weights (the product, so that decode only adds rows); a thread
// that decodes all requests step by step.
//
// Thread-safety: thread-safe.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine_side/cache_registry.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/weight_receiver.h"

namespace your {

inline constexpr int kVocab = 64;
inline constexpr int kHidden = 16;
inline constexpr int kWindow = 4;  // tokens that the next one looks back at

struct Token {
  int id = 0;
  std::uint64_t version = 0;  // whose weights made it
};

class Engine final : public bascule::EngineHooks {
 public:
  Engine();
  ~Engine() override;  // stops

  // Hooks 1 and 2, layout and memory: what it stores of each version, received and derived. The receiver makes two
  // slots of it; decode reads the live one through leases.
  static bascule::WeightReceiverOptions Weights();
  // Hook 3, the safe point.
  bascule::Result<bascule::SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                                     bascule::Deadline deadline) override;
  bool Decoding() const override { return !running_.empty(); }
  // Hook 4, stale state goes: that of running requests, and the cache of prompts.
  bascule::KvReport InvalidateKv(const bascule::WeightVersion& live) override;
  // Hook 5, derived tensors.
  bascule::Status Finalize(const bascule::StagedWeights& staged, bascule::Deadline deadline) override;

  // Once; until then nothing decodes.
  void Start(std::function<bascule::WeightLease()> acquire_live);
  // Decodes from `prompt`, which has tokens, until Finish.
  int Submit(const std::vector<int>& prompt);
  // Waits until the last `count` tokens of request `id` are of `version`. False at the deadline.
  bool Await(int id, std::uint64_t version, int count, bascule::Deadline deadline);
  // What request `id` has made; it is over.
  std::vector<Token> Finish(int id);

 private:
  using Scores = std::array<float, kVocab>;
  struct Request {
    std::vector<int> tokens;  // prompt and made
    std::size_t prompt_tokens = 0;
    std::vector<Token> made;
    std::deque<Scores> kv;   // of the last tokens before kv_end, at most kWindow, all of one version
    std::size_t kv_end = 0;  // tokens before this one are computed
  };
  struct CachedPrompt {
    std::deque<Scores> kv;
    bascule::Hash256 version;
  };

  void Decode();
  void Step(const bascule::WeightLease& weights);
  void Prefill(Request& request, const bascule::WeightLease& weights);
  // Calls `visit` when no step runs.
  template <typename Visit>
  auto BetweenSteps(const Visit& visit);

  bascule::CacheRegistry caches_;
  std::function<bascule::WeightLease()> acquire_live_;
  // Guards what follows. A step does not hold it: the decode thread owns the requests while in_step_.
  std::mutex mu_;
  std::condition_variable changed_;
  bool in_step_ = false;
  int visitors_ = 0;                          // who wait for the gap after the step
  std::optional<std::uint64_t> flip_before_;  // a flip waits for the gap before this step, or the next
  std::uint64_t next_step_ = 0;
  std::map<int, Request> running_;
  std::map<std::vector<int>, CachedPrompt> prompts_;
  int next_id_ = 0;
  bool stopping_ = false;
  std::thread decode_;  // last: it uses the rest
};

}  // namespace your
