#include "engine_side/flip_gate.h"

#include <algorithm>

namespace bascule {
namespace {

constexpr const char* kOverBudget = "stall_over_budget";
constexpr Duration kPostpone = std::chrono::milliseconds(20);  // between safe points at which a postponed flip is tried
constexpr std::size_t kRecentStalls = 8;
constexpr Duration kRecent = std::chrono::minutes(1);

FlipReport ReportOf(WeightVersion version, const SafePoint& point, const KvReport& kv) {
  return FlipReport{
      .version = std::move(version), .step = point.next_step, .flip_stall_us = UsOf(point.stall), .kv = kv};
}

}  // namespace

Result<FlipReport> FlipGate::Flip(const StagedVersion& staged, std::uint64_t at_step, Deadline deadline,
                                  const Record& record) {
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
  RecordAndLeave(report, record);
  return report;
}

Result<FlipReport> FlipGate::Rollback(std::optional<std::uint64_t> to, bool refused, Deadline deadline,
                                      const Record& record) {
  {
    MutexLock lock(mu_);
    while (recording_) {
      if (!clock_.WaitUntil(left_, mu_, deadline.point()) && recording_) {
        return Status::DeadlineExceeded("deadline", "a flip was being recorded");
      }
    }
    if (busy_) return Status::FailedPrecondition("flip_in_progress", "a flip or a rollback is under way");
    busy_ = true;
  }
  Result<FlipReport> report = SwapKept(to, refused, deadline);
  RecordAndLeave(report, record);
  return report;
}

Result<FlipReport> FlipGate::SwapKept(std::optional<std::uint64_t> to, bool refused, Deadline deadline) {
  const std::optional<WeightVersion> kept = slots_.kept();
  if (!kept) return Status::FailedPrecondition("no_kept_version", "there is no version to go back to");
  if (to && *to != kept->number) {
    return Status::NotFound("version_not_kept", fmt::format("wanted={} kept={}", *to, kept->number));
  }
  return AtSafePoint(/*at_step=*/0, deadline, [this, refused] { return MakeKeptLive(refused); });
}

Result<FlipReport> FlipGate::AtSafePoint(std::uint64_t at_step, Deadline deadline,
                                         const std::function<Result<WeightVersion>()>& change) {
  const bool initial = !slots_.live();
  while (true) {
    std::optional<Result<WeightVersion>> live;
    KvReport kv;
    const auto critical = [&] {
      // A process that was stopped may come here late, and whoever asked has given up.
      live.emplace(deadline.Passed(clock_) ? Status::DeadlineExceeded("deadline", "the safe point came too late")
                                           : change());
      if (live->ok()) kv = hooks_.InvalidateKv(**live);
    };
    ASSIGN_OR_RETURN(const SafePoint point, hooks_.RunAtSafePoint(at_step, critical, deadline));
    if (!live->ok()) {
      RETURN_IF_ERROR(TryAgainLater(live->status(), deadline));
      continue;
    }
    if (!initial) NoteStall(point.stall);
    return ReportOf(**live, point, kv);
  }
}

Status FlipGate::TryAgainLater(const Status& failed, Deadline deadline) {
  if (failed.reason() == "live_leased") return slots_.AwaitUnleasedLive(deadline);
  if (failed.reason() != kOverBudget || budget_.refuse) return failed;
  clock_.SleepUntil(std::min(deadline.point(), clock_.Now() + kPostpone), {});
  return deadline.Passed(clock_) ? failed : OkStatus();
}

Status FlipGate::CheckBudget(double share) {
  if (budget_.limit == Duration::zero() || !slots_.live() || !hooks_.Decoding()) return OkStatus();
  const std::optional<Duration> expected = ExpectedStall(share);
  if (!expected || *expected <= budget_.limit) return OkStatus();
  return Status::FailedPrecondition(kOverBudget, fmt::format("a flip now would stall decoding for about {:.0f} us, the "
                                                             "budget is {:.0f} us",
                                                             UsOf(*expected), UsOf(budget_.limit)));
}

// What else the machine does only makes a stall longer, so the shortest of the last few is what a flip itself costs.
// One that was long ago says nothing any more: were it the only one, and the machine busy then, no version would come
// again. Nor does one of a flip that had less to exchange.
std::optional<Duration> FlipGate::ExpectedStall(double share) {
  while (!recent_stalls_.empty() && recent_stalls_.front().at + kRecent < clock_.Now()) recent_stalls_.pop_front();
  std::optional<Duration> shortest;
  for (const Stall& stall : recent_stalls_) {
    if (stall.share >= share) shortest = std::min(shortest.value_or(stall.time), stall.time);
  }
  if (shortest || in_place_ == nullptr) return shortest;  // without any: an exchange of two numbers
  return std::chrono::duration_cast<Duration>(in_place_->EstimatedTime() * share);
}

void FlipGate::NoteStall(Duration stall) {
  if (stall == Duration::zero()) return;
  recent_stalls_.push_back({clock_.Now(), stall, share_});
  if (recent_stalls_.size() > kRecentStalls) recent_stalls_.pop_front();
}

Result<WeightVersion> FlipGate::MakeLive(const StagedVersion& staged) {
  if (staged.check) RETURN_IF_ERROR(staged.check());
  if (in_place_ == nullptr || !slots_.live()) {
    RETURN_IF_ERROR(CheckBudget(/*share=*/1));
    slots_.Flip(staged.slot, staged.version, staged.held);
  } else {
    const auto exchange = [this](const HeldDigests& live, const HeldDigests& next) -> Status {
      RETURN_IF_ERROR(CheckBudget(in_place_->ShareOf(live, next)));
      return ExchangeInPlace(live, next);
    };
    RETURN_IF_ERROR(slots_.FlipInPlace(staged.slot, staged.version, staged.held, exchange));
  }
  return staged.version;
}

Status FlipGate::ExchangeInPlace(const HeldDigests& live, const HeldDigests& next) {
  share_ = in_place_->ShareOf(live, next);
  return in_place_->Exchange(live, next);
}

// A session may have taken the kept slot by now.
Result<WeightVersion> FlipGate::MakeKeptLive(bool refused) {
  const auto exchange = [this](const HeldDigests& live, const HeldDigests& kept) {
    return ExchangeInPlace(live, kept);
  };
  Result<WeightVersion> live = in_place_ == nullptr ? slots_.SwapKept() : slots_.SwapKeptInPlace(exchange);
  if (live.ok() && refused) slots_.ForgetKept();
  return live;
}

void FlipGate::RecordAndLeave(const Result<FlipReport>& report, const Record& record) {
  if (report.ok()) {
    {
      MutexLock lock(mu_);
      recording_ = true;
    }
    record(*report);
  }
  MutexLock lock(mu_);
  busy_ = recording_ = false;
  left_.NotifyAll();
}

}  // namespace bascule
