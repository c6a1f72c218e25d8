#include "engine_side/flip_gate.h"

namespace bascule {
namespace {

FlipReport ReportOf(WeightVersion version, const SafePoint& point, const KvReport& kv) {
  return FlipReport{
      .version = std::move(version), .step = point.next_step, .flip_stall_us = UsOf(point.stall), .kv = kv};
}

}  // namespace

Result<FlipReport> FlipGate::Flip(int slot, const WeightVersion& version, std::uint64_t at_step, Deadline deadline) {
  {
    MutexLock lock(mu_);
    while (busy_) {
      if (!clock_.WaitUntil(left_, mu_, deadline.point()) && busy_) {
        return Status::DeadlineExceeded("deadline", "a rollback was under way");
      }
    }
    busy_ = true;
  }
  KvReport kv;
  const auto flip = [&] {
    slots_.Flip(slot, version);
    kv = hooks_.InvalidateKv(version);
  };
  const Result<SafePoint> point = hooks_.RunAtSafePoint(at_step, flip, deadline);
  Leave();
  if (!point.ok()) return point.status();
  return ReportOf(version, *point, kv);
}

Result<FlipReport> FlipGate::Rollback(std::optional<std::uint64_t> to, Deadline deadline) {
  {
    MutexLock lock(mu_);
    if (busy_) return Status::FailedPrecondition("flip_in_progress", "a flip or a rollback is under way");
    busy_ = true;
  }
  Result<FlipReport> report = SwapAtSafePoint(to, deadline);
  Leave();
  return report;
}

Result<FlipReport> FlipGate::SwapAtSafePoint(std::optional<std::uint64_t> to, Deadline deadline) {
  const std::optional<WeightVersion> kept = slots_.kept();
  if (!kept) return Status::FailedPrecondition("no_kept_version", "there is no version to go back to");
  if (to && *to != kept->number) {
    return Status::NotFound("version_not_kept", fmt::format("wanted={} kept={}", *to, kept->number));
  }
  Status refused;
  KvReport kv;
  const auto swap = [&] {
    const Result<WeightVersion> restored = slots_.SwapKept();  // a session may have taken the kept slot by now
    refused = restored.status();
    if (restored.ok()) kv = hooks_.InvalidateKv(*restored);
  };
  ASSIGN_OR_RETURN(const SafePoint point, hooks_.RunAtSafePoint(/*at_step=*/0, swap, deadline));
  RETURN_IF_ERROR(refused);
  return ReportOf(*kept, point, kv);
}

void FlipGate::Leave() {
  MutexLock lock(mu_);
  busy_ = false;
  left_.NotifyAll();
}

}  // namespace bascule
