#include "engine_side/decode/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "engine_side/decode/request_check.h"

namespace bascule {
namespace {

bool Contains(const std::vector<std::int32_t>& tokens, std::int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// The last generated token is never fed back, so its KV state is never made.
std::int64_t WorstTokens(const GenerateRequest& request) {
  return std::ssize(request.prompt) + request.max_new_tokens - 1;
}

bool IsOlder(const WeightVersion& a, const WeightVersion& b) { return a.run == b.run && a.number < b.number; }

}  // namespace

Status Scheduler::Submit(std::uint64_t id, GenerateRequest request, std::shared_ptr<GenerateSink> sink, TimePoint now) {
  RETURN_IF_ERROR(CheckRequest(request, limits_.vocabulary, limits_.max_positions));
  const std::int64_t worst_pages = (WorstTokens(request) + limits_.page_tokens - 1) / limits_.page_tokens;
  if (worst_pages > pages_.total()) {
    return Status::ResourceExhausted("request_too_large",
                                     fmt::format("kv_pages={} of {}", worst_pages, pages_.total()));
  }
  const std::int64_t prompt_size = std::ssize(request.prompt);
  if (waiting() >= limits_.max_waiting || waiting_tokens_ + prompt_size > limits_.max_waiting_tokens) {
    return Status::ResourceExhausted("queue_full", fmt::format("waiting={} tokens={}", waiting(), waiting_tokens_));
  }
  auto waiter = std::make_unique<Request>(pages_, prefixes_, limits_.page_tokens);
  const bool limited = request.time_limit > Duration::zero() && request.time_limit < limits_.time_limit;
  waiter->id = id;
  waiter->policy = request.kv_policy.value_or(limits_.kv_policy);
  waiter->deadline = now + (limited ? request.time_limit : limits_.time_limit);
  waiter->tokens = request.prompt;
  waiter->asked = std::move(request);
  waiter->sink = std::move(sink);
  waiter->counted = true;
  waiting_tokens_ += prompt_size;
  deadlines_.emplace(waiter->deadline, id);
  by_id_[id] = waiter.get();
  waiting_.push_back(std::move(waiter));
  return OkStatus();
}

void Scheduler::Cancel(std::uint64_t id, Status why) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->ending) return;
  found->second->ending = Ending{FinishReason::kCancelled, std::move(why)};
  any_ending_ = true;
}

bool Scheduler::HasWork(TimePoint now) const {
  if (any_ending_ || !running_.empty() || !waiting_.empty()) return true;
  return !deadlines_.empty() && deadlines_.begin()->first <= now;
}

std::optional<TimePoint> Scheduler::NextDeadline() const {
  return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.begin()->first);
}

Scheduler::Step Scheduler::BeginStep(const std::shared_ptr<StepWeights>& live, TimePoint now,
                                     std::vector<Delivery>& deliveries) {
  if (live_ && *live_ != live->version()) {  // a flip that told nobody
    LogWarn("cache_not_invalidated", "version={}", live->version().ToString());
    Invalidate(live->version());
  }
  live_ = live->version();
  Step step;
  under_way_.clear();
  AddPass(live, step);
  EndDue(now, deliveries);
  SettleFlip();
  Admit(live, step);
  Room room{.rows = limits_.max_step_tokens, .logits = std::min(limits_.max_running, limits_.max_step_tokens)};
  for (const auto& request : running_) request->rows = 0;
  for (const bool decoding : {true, false}) {
    for (const auto& request : running_) {
      if ((request->pending() == 1) == decoding && request->rows == 0) AddRows(*request, room, step);
    }
  }
  return step;
}

void Scheduler::EndDue(TimePoint now, std::vector<Delivery>& deliveries) {
  for (auto due = deadlines_.begin(); due != deadlines_.end() && due->first <= now; ++due) {
    Cancel(due->second, Status::DeadlineExceeded("deadline", "the time limit of the request is over"));
  }
  if (!std::exchange(any_ending_, false)) return;
  const auto end = [&](const Owned& request) {
    if (!request->ending) return false;
    Finish(*request, request->ending->reason, request->ending->why, deliveries);
    return true;
  };
  std::erase_if(running_, end);
  std::erase_if(waiting_, end);
  std::erase_if(parked_, end);
}

// What a flip decided is carried out: pages come back here, outside of its critical section. Requests that start again
// go to the head of the queue, in their order.
void Scheduler::SettleFlip() {
  if (!std::exchange(unsettled_, false)) return;
  for (const auto& request : running_) request->kv.Settle();
  const auto first = std::stable_partition(running_.begin(), running_.end(), [](const auto& r) { return !r->restart; });
  for (auto request = running_.end(); request != first;) {
    Request& again = **--request;
    again.kv.Close(again.tokens);
    again.restart = false;
    again.drain.reset();
    if (!again.prompt_told) again.prompt_logprobs.clear();
    waiting_.push_front(std::move(*request));
  }
  running_.erase(first, running_.end());
  prefixes_.FreeDropped();
}

void Scheduler::Admit(const std::shared_ptr<StepWeights>& live, Step& step) {
  while (!waiting_.empty() && running() < limits_.max_running) {
    Owned& next = waiting_.front();
    if (next->asked.min_start_version > live->version().number && !next->oldest) {
      parked_.push_back(std::move(next));
    } else {
      if (Open(*next, live, step) != KvState::Opened::kYes) return;
      Uncount(*next);
      running_.push_back(std::move(next));
    }
    waiting_.pop_front();
  }
}

KvState::Opened Scheduler::Open(Request& request, const std::shared_ptr<StepWeights>& live, Step& step) {
  const std::int64_t shareable = request.ScoresPrompt() ? 0 : std::ssize(request.tokens) - 1;
  const KvState::Wish wish{
      .tokens = request.tokens, .worst_tokens = WorstTokens(request.asked), .most_shared = shareable};
  const KvState::Opened opened = request.kv.Open(live->version(), wish, step.copies);
  if (opened == KvState::Opened::kYes && request.policy == KvPolicy::kDrain) request.drain = live;
  return opened;
}

// Those that wait for a version that is live now wait for their turn, behind those that did not.
void Scheduler::Unpark() {
  for (Owned& request : parked_) {
    if (request->asked.min_start_version <= live_->number) waiting_.push_back(std::move(request));
  }
  std::erase(parked_, nullptr);
}

void Scheduler::Uncount(Request& request) {
  if (std::exchange(request.counted, false)) waiting_tokens_ -= request.prompt_size();
}

void Scheduler::AddPass(std::shared_ptr<StepWeights> weights, Step& step) {
  under_way_.push_back({weights->version(), {}});
  step.passes.push_back({std::move(weights), {}, {}});
}

std::size_t Scheduler::PassOf(const Request& request, Step& step) {
  if (request.drain == nullptr) return 0;
  for (std::size_t pass = 0; pass < under_way_.size(); ++pass) {
    if (under_way_[pass].version == request.drain->version()) return pass;
  }
  AddPass(request.drain, step);
  return under_way_.size() - 1;
}

void Scheduler::AddRows(Request& request, Room& room, Step& step) {
  std::int64_t count = std::min(request.pending(), room.rows);
  if (request.ScoresPrompt()) {
    count = std::min(count, room.logits);
  } else if (count == request.pending() && room.logits == 0) {
    --count;
  }
  if (count == 0) return;
  request.rows = count;
  request.pass = PassOf(request, step);
  room.rows -= count;
  Pass& pass = step.passes[request.pass];
  for (std::int64_t position = request.kv.cached(); position < request.kv.cached() + count; ++position) {
    const auto next = static_cast<std::size_t>(position) + 1;
    const bool scores = request.ScoresPrompt() && std::cmp_less(next, request.prompt_size());
    const bool draws = next == request.tokens.size();
    pass.rows.push_back({.token = request.tokens[next - 1],
                         .position = position,
                         .pages = request.kv.pages(),
                         .wants_logits = scores || draws});
    if (!scores && !draws) continue;
    --room.logits;
    under_way_[request.pass].wishers.push_back({&request, scores});
    SampleWish& wish = pass.wishes.emplace_back();
    wish.seed = request.asked.seed;
    wish.sample = request.asked.sample;
    wish.position = next;
    wish.rule = {.temperature = request.asked.temperature, .top_k = request.asked.top_k, .top_p = request.asked.top_p};
    wish.rule.top_logprobs = scores ? 0 : request.asked.top_logprobs;
    if (scores) wish.rule.given = request.tokens[next];
    if (request.generated() < request.asked.min_new_tokens) wish.rule.banned = request.asked.stop;
  }
}

void Scheduler::FinishStep(const std::vector<std::optional<SampledToken>>& sampled, TimePoint now,
                           std::vector<Delivery>& deliveries) {
  for (const auto& request : running_) {
    if (request->rows > 0) request->kv.Advance(under_way_[request->pass].version, request->tokens, request->rows);
    request->rows = 0;
  }
  auto answer = sampled.begin();
  for (const PassUnderWay& pass : under_way_) {
    for (const Wisher& wisher : pass.wishers) {
      CHECK(answer != sampled.end());
      TakeSampled(wisher, pass.version, *answer++, now, deliveries);
    }
  }
  CHECK(answer == sampled.end());
  under_way_.clear();
  std::erase_if(running_, [](const auto& request) { return request->sink == nullptr; });
}

void Scheduler::TakeSampled(const Wisher& wisher, const WeightVersion& version,
                            const std::optional<SampledToken>& sampled, TimePoint now,
                            std::vector<Delivery>& deliveries) {
  Request& request = *wisher.request;
  if (request.sink == nullptr || request.ending) return;  // the next step ends it
  if (!sampled) {
    request.kv.StopSharing();
    Finish(request, FinishReason::kFailed, Status::FailedPrecondition("logits_not_finite", version.ToString()),
           deliveries);
  } else if (wisher.of_prompt) {
    request.prompt_logprobs.push_back(sampled->logprob);
  } else {
    if (!request.prompt_told) TellPrompt(request, version, deliveries);
    TakeToken(request, version, *sampled, now, deliveries);
  }
}

void Scheduler::TellPrompt(Request& request, const WeightVersion& version, std::vector<Delivery>& deliveries) {
  request.prompt_told = true;
  Delivery& delivery = deliveries.emplace_back();
  delivery.request = request.id;
  delivery.sink = request.sink;
  delivery.prompt = PromptReport{.shared_tokens = request.kv.from_others(),
                                 .logprobs = std::move(request.prompt_logprobs),
                                 .version = version.number,
                                 .kv_epoch = request.kv.epoch().number};
}

void Scheduler::TakeToken(Request& request, const WeightVersion& version, const SampledToken& sampled, TimePoint now,
                          std::vector<Delivery>& deliveries) {
  ++tokens_;
  request.tokens.push_back(sampled.id);
  if (!request.oldest || IsOlder(version, *request.oldest)) request.oldest = version;
  const bool across = std::exchange(request.flipped, false) && request.last_token_at;
  Delivery& delivery = deliveries.emplace_back();
  delivery.request = request.id;
  delivery.sink = request.sink;
  delivery.token = GeneratedToken{.id = sampled.id,
                                  .logprob = sampled.logprob,
                                  .version = version.number,
                                  .kv_epoch = request.kv.epoch().number,
                                  .top = sampled.top,
                                  .flip_gap = across ? now - *request.last_token_at : Duration::zero()};
  request.last_token_at = now;
  if (Contains(request.asked.stop, sampled.id)) {
    Finish(request, FinishReason::kStop, OkStatus(), deliveries);
  } else if (request.generated() == request.asked.max_new_tokens) {
    Finish(request, FinishReason::kLength, OkStatus(), deliveries);
  }
}

// A request without a sink has ended; whoever calls takes it off its list.
void Scheduler::Finish(Request& request, FinishReason reason, Status why, std::vector<Delivery>& deliveries) {
  request.kv.Close(request.tokens);
  request.drain.reset();
  Uncount(request);
  by_id_.erase(request.id);
  deadlines_.erase({request.deadline, request.id});
  Delivery& delivery = deliveries.emplace_back();
  delivery.request = request.id;
  delivery.sink = std::exchange(request.sink, nullptr);
  delivery.finish = reason;
  delivery.why = std::move(why);
}

KvReport Scheduler::Invalidate(const WeightVersion& live) {
  KvReport report;
  for (const auto& request : running_) {
    request->kv.StopSharing();
    if (!request->ending) ApplyPolicy(*request, live, report);
  }
  report.prefix_entries_dropped = static_cast<std::uint64_t>(prefixes_.DropOthers(live.digest));
  live_ = live;
  unsettled_ = true;
  Unpark();
  return report;
}

void Scheduler::ApplyPolicy(Request& request, const WeightVersion& live, KvReport& report) {
  request.flipped = true;
  const bool too_stale = TooStale(request, live);
  if (too_stale || request.policy == KvPolicy::kAbort) {
    request.ending = too_stale
                         ? Ending{FinishReason::kTooStale, Status::Aborted("too_stale", live.ToString())}
                         : Ending{FinishReason::kAbortedByFlip, Status::Aborted("aborted_by_flip", live.ToString())};
    any_ending_ = true;
    report.too_stale += too_stale ? 1 : 0;
    ++report.aborted;
  } else if (request.policy == KvPolicy::kDrain) {
    ++report.drained;
  } else if (request.policy == KvPolicy::kKeep) {
    ++report.kept;
    if (request.kv.cached() == 0) request.restart = true;  // there is nothing to keep
  } else {
    ++report.recomputed;
    if (!std::exchange(request.restart, true)) {
      report.recompute_tokens += static_cast<std::uint64_t>(request.kv.cached());
    }
  }
}

// Of what the request has and of what it would go on with, the oldest decides.
bool Scheduler::TooStale(const Request& request, const WeightVersion& live) {
  if (!request.asked.max_staleness) return false;
  const auto old = [&](const WeightVersion& version) {
    if (version.run != live.run) return true;
    return version.number < live.number && live.number - version.number > *request.asked.max_staleness;
  };
  if (request.oldest && old(*request.oldest)) return true;
  if (request.drain != nullptr) return old(request.drain->version());
  return request.policy == KvPolicy::kKeep && request.kv.cached() > 0 && old(request.kv.epoch());
}

void Scheduler::FinishAll(FinishReason reason, const Status& why, std::vector<Delivery>& deliveries) {
  for (const auto& request : running_) Finish(*request, reason, why, deliveries);
  for (const auto& request : waiting_) Finish(*request, reason, why, deliveries);
  for (const auto& request : parked_) Finish(*request, reason, why, deliveries);
  running_.clear();
  waiting_.clear();
  parked_.clear();
}

}  // namespace bascule
