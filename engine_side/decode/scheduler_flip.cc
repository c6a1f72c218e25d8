// What a flip does to the requests of a scheduler.
#include <algorithm>
#include <utility>

#include "engine_side/decode/scheduler.h"

namespace bascule {

KvReport Scheduler::Invalidate(const WeightVersion& live) {
  KvReport report;
  for (const auto& request : running_) {
    request->kv.StopSharing();
    if (!request->ending) ApplyPolicy(*request, live, report);
  }
  for (const auto& request : restarted_) {  // of an earlier flip: they hold no state
    if (!request->ending && TooStale(*request, live)) EndAsStale(*request, live, report);
  }
  report.prefix_entries_dropped = static_cast<std::uint64_t>(prefixes_.DropOthers(live.digest));
  live_ = live;
  unsettled_ = true;
  Unpark();
  return report;
}

void Scheduler::ApplyPolicy(Request& request, const WeightVersion& live, KvReport& report) {
  request.flipped = true;
  if (TooStale(request, live)) {
    EndAsStale(request, live, report);
  } else if (request.policy == KvPolicy::kAbort) {
    request.ending = Ending{FinishReason::kAbortedByFlip, Status::Aborted("aborted_by_flip", live.ToString())};
    any_ending_ = true;
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

void Scheduler::EndAsStale(Request& request, const WeightVersion& live, KvReport& report) {
  request.ending = Ending{FinishReason::kTooStale, Status::Aborted("too_stale", live.ToString())};
  any_ending_ = true;
  ++report.too_stale;
  ++report.aborted;
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

// What a flip decided is carried out, outside of its critical section: requests give their pages back, and hold no
// entry of the old version from here on. Those that start again go before all that wait, in their order.
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
    restarted_.push_front(std::move(*request));
  }
  running_.erase(first, running_.end());
}

}  // namespace bascule
