#include "engine_side/flip_gate.h"

namespace bascule {
namespace {

FlipReport ReportOf(WeightVersion version, const SafePoint& point, const KvReport& kv) {
  return FlipReport{
      .version = std::move(version), .step = point.next_step, .flip_stall_us = UsOf(point.stall), .kv = kv};
}

}  // namespace

Result<FlipReport> FlipGate::Flip(const StagedVersion& staged, std::uint64_t at_step, Deadline deadline) {
  {
    MutexLock lock(mu_);
    while (busy_) {
      if (!clock_.WaitUntil(left_, mu_, deadline.point()) && busy_) {
        return Status::DeadlineExceeded("deadline", "a rollback was under way");
      }
    }
    busy_ = true;
  }
  Result<FlipReport> report = AtSafePoint(at_step, deadline, [&] { return MakeLive(staged); });
  Leave();
  return report;
}

Result<FlipReport> FlipGate::Rollback(std::optional<std::uint64_t> to, Deadline deadline) {
  {
    MutexLock lock(mu_);
    if (busy_) return Status::FailedPrecondition("flip_in_progress", "a flip or a rollback is under way");
    busy_ = true;
  }
  Result<FlipReport> report = SwapKept(to, deadline);
  Leave();
  return report;
}

Result<FlipReport> FlipGate::SwapKept(std::optional<std::uint64_t> to, Deadline deadline) {
  const std::optional<WeightVersion> kept = slots_.kept();
  if (!kept) return Status::FailedPrecondition("no_kept_version", "there is no version to go back to");
  if (to && *to != kept->number) {
    return Status::NotFound("version_not_kept", fmt::format("wanted={} kept={}", *to, kept->number));
  }
  return AtSafePoint(/*at_step=*/0, deadline, [this] { return MakeKeptLive(); });
}

Result<FlipReport> FlipGate::AtSafePoint(std::uint64_t at_step, Deadline deadline,
                                         const std::function<Result<WeightVersion>()>& change) {
  while (true) {
    std::optional<Result<WeightVersion>> live;
    KvReport kv;
    const auto critical = [&] {
      live.emplace(change());
      if (live->ok()) kv = hooks_.InvalidateKv(**live);
    };
    ASSIGN_OR_RETURN(const SafePoint point, hooks_.RunAtSafePoint(at_step, critical, deadline));
    if (live->ok()) return ReportOf(**live, point, kv);
    if (live->status().reason() != "live_leased") return live->status();
    RETURN_IF_ERROR(slots_.AwaitUnleasedLive(deadline));
  }
}

Result<WeightVersion> FlipGate::MakeLive(const StagedVersion& staged) {
  if (in_place_ == nullptr || !slots_.live()) {
    slots_.Flip(staged.slot, staged.version, staged.held);
  } else {
    RETURN_IF_ERROR(slots_.FlipInPlace(
        staged.slot, staged.version, staged.held,
        [this](const HeldDigests& live, const HeldDigests& next) { return in_place_->Exchange(live, next); }));
  }
  return staged.version;
}

// A session may have taken the kept slot by now.
Result<WeightVersion> FlipGate::MakeKeptLive() {
  if (in_place_ == nullptr) return slots_.SwapKept();
  return slots_.SwapKeptInPlace(
      [this](const HeldDigests& live, const HeldDigests& kept) { return in_place_->Exchange(live, kept); });
}

void FlipGate::Leave() {
  MutexLock lock(mu_);
  busy_ = false;
  left_.NotifyAll();
}

}  // namespace bascule
