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

constexpr std::int64_t kFreedAStep = 64;  // entries of the prefix cache that a flip dropped: a few microseconds
constexpr std::size_t kMostSkipped = 16;  // clients, at one admission: looking for shared state costs time

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
  if (!waiting_.HasRoom(request.client, prompt_size)) {
    return Status::ResourceExhausted("queue_full", fmt::format("waiting={} tokens={}", waiting(), waiting_.tokens()));
  }
  auto waiter = std::make_unique<Request>(pages_, prefixes_, limits_.page_tokens);
  const bool limited = request.time_limit > Duration::zero() && request.time_limit < limits_.time_limit;
  waiter->id = id;
  waiter->policy = request.kv_policy.value_or(limits_.kv_policy);
  waiter->deadline = now + (limited ? request.time_limit : limits_.time_limit);
  waiter->tokens = request.prompt;
  waiter->asked = std::move(request);
  waiter->sink = std::move(sink);
  deadlines_.emplace(waiter->deadline, id);
  by_id_[id] = waiter.get();
  const std::string client = waiter->asked.client;
  waiting_.Add(client, prompt_size, std::move(waiter));
  return OkStatus();
}

void Scheduler::Cancel(std::uint64_t id, Status why) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->ending) return;
  found->second->ending = Ending{FinishReason::kCancelled, std::move(why)};
  any_ending_ = true;
}

bool Scheduler::HasWork(TimePoint now) const {
  if (any_ending_ || !running_.empty() || !restarted_.empty() || !waiting_.empty()) return true;
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
  for (const auto& request : running_) {
    if (request->pending() == 1) AddRows(*request, 1, room, step);
  }
  AddPrompts(room, step);
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
  std::erase_if(restarted_, end);
  std::erase_if(parked_, end);
  for (const Owned& request : waiting_.TakeIf([](const Owned& r) { return r->ending.has_value(); })) end(request);
}

void Scheduler::Admit(const std::shared_ptr<StepWeights>& live, Step& step) {
  std::size_t skip = 0;  // clients whose next request waits for one that runs to have what it shares
  while (running() < limits_.max_running && skip < kMostSkipped) {
    Request* next = NextToAdmit(live, skip);
    if (next == nullptr) return;
    const KvState::Opened opened = Open(*next, live, step);
    if (opened == KvState::Opened::kYes) {
      Run(*next);
    } else if (opened == KvState::Opened::kSharesSoon && restarted_.empty()) {
      ++skip;
    } else {
      return;
    }
  }
}

// Puts those aside that wait for a version.
Scheduler::Request* Scheduler::NextToAdmit(const std::shared_ptr<StepWeights>& live, std::size_t skip) {
  if (!restarted_.empty()) return restarted_.front().get();
  while (const Owned* head = waiting_.Head(skip)) {
    if ((*head)->asked.min_start_version <= live->version().number) return head->get();
    parked_.push_back(waiting_.Take((*head)->asked.client));
  }
  return nullptr;
}

// `request` is at the head of its queue.
void Scheduler::Run(Request& request) {
  if (std::exchange(request.admitted, true)) {
    running_.push_back(std::move(restarted_.front()));
    restarted_.pop_front();
  } else {
    running_.push_back(waiting_.Take(request.asked.client));
    waiting_.Admitted(request.asked.client, request.prompt_size());
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
    if (request->asked.min_start_version > live_->number) continue;
    const std::string client = request->asked.client;
    waiting_.Queue(client, std::move(request));
  }
  std::erase(parked_, nullptr);
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

void Scheduler::AddPrompts(Room& room, Step& step) {
  std::vector<Request*> prompts;
  for (const auto& request : running_) {
    if (request->pending() > 1) prompts.push_back(request.get());
  }
  if (prompts.empty()) return;
  std::vector<Request*> shorter;
  const auto lacks_less = [&](const Request* request) { return request->pending() < prompts.front()->pending(); };
  std::ranges::copy_if(prompts, std::back_inserter(shorter), lacks_less);
  std::ranges::stable_sort(shorter, {}, &Request::pending);
  std::int64_t for_shorter = room.rows / 2;
  for (Request* request : shorter) {
    AddRows(*request, for_shorter, room, step);
    for_shorter -= request->rows;
  }
  for (Request* request : prompts) {
    if (request->rows == 0) AddRows(*request, room.rows, room, step);
  }
}

void Scheduler::AddRows(Request& request, std::int64_t most, Room& room, Step& step) {
  std::int64_t count = std::min({request.pending(), most, room.rows});
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
  prefixes_.FreeDropped(kFreedAStep);
}

void Scheduler::FailStep(const Status& why, std::vector<Delivery>& deliveries) {
  for (const auto& request : running_) {
    request->rows = 0;
    request->kv.StopSharing();
    Finish(*request, FinishReason::kFailed, why, deliveries);
  }
  running_.clear();
  under_way_.clear();
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
  if (across) flip_gaps_.Add(now - *request.last_token_at);
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
  if (request.admitted) {
    waiting_.Left(request.asked.client);
  } else {
    waiting_.Withdrawn(request.asked.client, request.prompt_size());
  }
  by_id_.erase(request.id);
  deadlines_.erase({request.deadline, request.id});
  Delivery& delivery = deliveries.emplace_back();
  delivery.request = request.id;
  delivery.sink = std::exchange(request.sink, nullptr);
  delivery.finish = reason;
  delivery.why = std::move(why);
}

void Scheduler::FinishAll(FinishReason reason, const Status& why, std::vector<Delivery>& deliveries) {
  const std::vector<Owned> waiting = waiting_.TakeIf([](const Owned&) { return true; });
  const auto finish = [&](const Owned& request) { Finish(*request, reason, why, deliveries); };
  std::ranges::for_each(running_, finish);
  std::ranges::for_each(restarted_, finish);
  std::ranges::for_each(waiting, finish);
  std::ranges::for_each(parked_, finish);
  running_.clear();
  restarted_.clear();
  parked_.clear();
}

}  // namespace bascule
