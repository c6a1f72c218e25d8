#include "engine_side/decode/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace bascule {
namespace {

Status CheckRequest(const GenerateRequest& request, const SchedulerLimits& limits) {
  const auto bad = [](std::string what) { return Status::InvalidArgument("bad_request", std::move(what)); };
  if (request.prompt.empty()) return bad("the prompt is empty");
  for (const std::int32_t token : request.prompt) {
    if (token < 0 || token >= limits.vocabulary) {
      return bad(fmt::format("prompt token {} is outside the vocabulary of {}", token, limits.vocabulary));
    }
  }
  if (request.max_new_tokens < 1) return bad(fmt::format("max_new_tokens={} want=1..", request.max_new_tokens));
  const std::int64_t most = static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (most > limits.max_positions) {
    return bad(fmt::format("prompt={} max_new_tokens={} but the model has {} positions", request.prompt.size(),
                           request.max_new_tokens, limits.max_positions));
  }
  if (!std::isfinite(request.temperature) || request.temperature < 0) {
    return bad(fmt::format("temperature={} want a finite number >= 0", request.temperature));
  }
  return OkStatus();
}

bool Contains(const std::vector<std::int32_t>& tokens, std::int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

// The last generated token is never fed back, so its KV state is never made.
std::int64_t Scheduler::WorstPages(const GenerateRequest& request) const {
  return cache_.PagesFor(static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens - 1);
}

Status Scheduler::Submit(std::uint64_t id, GenerateRequest request, std::shared_ptr<GenerateSink> sink) {
  RETURN_IF_ERROR(CheckRequest(request, limits_));
  const std::int64_t worst_pages = WorstPages(request);
  if (worst_pages > cache_.pages_total()) {
    return Status::ResourceExhausted("request_too_large",
                                     fmt::format("kv_pages={} of {}", worst_pages, cache_.pages_total()));
  }
  if (waiting() >= limits_.max_waiting) {
    return Status::ResourceExhausted("queue_full", fmt::format("waiting={}", waiting()));
  }
  auto waiter = std::make_unique<Request>();
  waiter->id = id;
  waiter->tokens = request.prompt;
  waiter->asked = std::move(request);
  waiter->sink = std::move(sink);
  by_id_[id] = waiter.get();
  waiting_.push_back(std::move(waiter));
  return OkStatus();
}

void Scheduler::Cancel(std::uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  found->second->cancelled = true;
  any_cancelled_ = true;
}

Scheduler::Step Scheduler::BeginStep(const WeightVersion& live, std::vector<Delivery>& deliveries) {
  DropCancelled(deliveries);
  Admit();
  live_ = live;
  for (const auto& request : running_) {
    request->rows = 0;
    if (request->kv_version == live_) continue;
    // A flip that forgot to invalidate could still not make stale state readable.
    request->cached = 0;
    request->kv_version = live_;
  }
  Step step;
  std::int64_t budget = limits_.max_step_tokens;
  for (const bool decoding : {true, false}) {
    for (const auto& request : running_) {
      if ((request->pending() == 1) != decoding) continue;
      const std::int64_t count = std::min(request->pending(), budget);
      budget -= count;
      AddRows(*request, count, step);
    }
  }
  return step;
}

void Scheduler::DropCancelled(std::vector<Delivery>& deliveries) {
  if (!any_cancelled_) return;
  any_cancelled_ = false;
  const auto drop = [&](const std::unique_ptr<Request>& request) {
    if (request->cancelled) Finish(*request, FinishReason::kCancelled, Status::Cancelled("cancelled"), deliveries);
    return request->cancelled;
  };
  std::erase_if(running_, drop);
  std::erase_if(waiting_, drop);
}

void Scheduler::Admit() {
  while (!waiting_.empty() && running() < limits_.max_running) {
    Request& next = *waiting_.front();
    std::optional<std::vector<std::int32_t>> pages = cache_.Reserve(WorstPages(next.asked));
    if (!pages) return;
    next.pages = *std::move(pages);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Scheduler::AddRows(Request& request, std::int64_t count, Step& step) {
  if (count == 0) return;
  request.rows = count;
  const std::int64_t end = request.cached + count;
  const bool reaches_end = count == request.pending();
  for (std::int64_t position = request.cached; position < end; ++position) {
    step.rows.push_back({.token = request.tokens[static_cast<std::size_t>(position)],
                         .position = position,
                         .pages = request.pages.data(),
                         .wants_logits = reaches_end && position + 1 == end});
  }
  if (!reaches_end) return;
  sampling_.push_back(&request);
  step.wishes.push_back({.temperature = request.asked.temperature,
                         .seed = request.asked.seed,
                         .position = static_cast<std::uint64_t>(request.tokens.size())});
}

void Scheduler::FinishStep(const std::vector<std::optional<SampledToken>>& sampled, std::vector<Delivery>& deliveries) {
  CHECK(sampled.size() == sampling_.size());
  for (const auto& request : running_) request->cached += request->rows;
  bool any_ended = false;
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    if (sampling_[i]->cancelled) continue;  // the next step drops it
    any_ended |= TakeToken(*sampling_[i], sampled[i], deliveries);
  }
  sampling_.clear();
  if (any_ended) std::erase_if(running_, [](const auto& request) { return request->sink == nullptr; });
}

bool Scheduler::TakeToken(Request& request, const std::optional<SampledToken>& sampled,
                          std::vector<Delivery>& deliveries) {
  if (!sampled) {
    Finish(request, FinishReason::kFailed, Status::FailedPrecondition("logits_not_finite", live_.ToString()),
           deliveries);
    return true;
  }
  ++tokens_;
  request.tokens.push_back(sampled->id);
  Delivery& delivery = deliveries.emplace_back();
  delivery.sink = request.sink;
  delivery.token = GeneratedToken{
      .id = sampled->id, .logprob = sampled->logprob, .version = live_.number, .kv_epoch = request.kv_version.number};
  const std::size_t most = request.asked.prompt.size() + static_cast<std::size_t>(request.asked.max_new_tokens);
  if (Contains(request.asked.stop, sampled->id)) {
    Finish(request, FinishReason::kStop, OkStatus(), deliveries);
  } else if (request.tokens.size() == most) {
    Finish(request, FinishReason::kLength, OkStatus(), deliveries);
  }
  return request.sink == nullptr;
}

// A request without a sink has ended; whoever calls takes it off its list.
void Scheduler::Finish(Request& request, FinishReason reason, Status why, std::vector<Delivery>& deliveries) {
  cache_.Release(request.pages);
  by_id_.erase(request.id);
  Delivery& delivery = deliveries.emplace_back();
  delivery.sink = std::exchange(request.sink, nullptr);
  delivery.finish = reason;
  delivery.why = std::move(why);
}

KvReport Scheduler::Invalidate(const WeightVersion& live) {
  KvReport report;
  for (const auto& request : running_) {
    ++report.recomputed;
    report.recompute_tokens += static_cast<std::uint64_t>(request->cached);
    request->cached = 0;
    request->kv_version = live;
  }
  return report;
}

void Scheduler::FinishAll(FinishReason reason, const Status& why, std::vector<Delivery>& deliveries) {
  for (const auto& request : running_) Finish(*request, reason, why, deliveries);
  for (const auto& request : waiting_) Finish(*request, reason, why, deliveries);
  running_.clear();
  waiting_.clear();
}

}  // namespace bascule
