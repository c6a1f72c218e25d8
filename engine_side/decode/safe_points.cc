#include "engine_side/decode/safe_points.h"

#include <algorithm>

namespace bascule {

SafePoints::Call* SafePoints::Due(std::uint64_t next_step, bool idle) const {
  if (critical_running_) return nullptr;
  const auto due = std::ranges::find_if(waiting_, [&](const Call* call) { return idle || call->at_step <= next_step; });
  return due == waiting_.end() ? nullptr : *due;
}

void SafePoints::Begin(Call& call, bool decoding, TimePoint now) {
  waiting_.remove(&call);
  call.state = Call::State::kRunning;
  call.decoding = decoding;
  call.began = now;
  critical_running_ = true;
}

void SafePoints::End(Call& call, std::uint64_t next_step, TimePoint now) {
  critical_running_ = false;
  call.result.next_step = next_step;
  if (call.decoding) {
    call.result.stall = now - call.began;
    stalled_.push_back(&call);
  } else {
    call.state = Call::State::kDone;
  }
}

bool SafePoints::StepBegan(TimePoint due, TimePoint now) {
  if (stalled_.empty()) {
    beginning_ += (now - due - beginning_) / 8;
    return false;
  }
  FinishStalled(now - beginning_);
  return true;
}

void SafePoints::FinishStalled(TimePoint until) {
  for (Call* call : stalled_) {
    call->result.stall = std::max(call->result.stall, until - call->began);
    call->state = Call::State::kDone;
  }
  stalled_.clear();
}

}  // namespace bascule
