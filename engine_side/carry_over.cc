#include "engine_side/carry_over.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/thread_priority.h"

namespace bascule {
namespace {

std::string Named(const WeightVersion& version) {
  return fmt::format("{} (digest {})", version.ToString(), version.digest.ToHex());
}

}  // namespace

Status CheckBase(const std::optional<WeightVersion>& live, const WeightVersion& base) {
  if (live == base) return OkStatus();
  return Status::FailedPrecondition(
      "wrong_base", fmt::format("the offer builds on {}, live is {}", Named(base), live ? Named(*live) : "nothing"));
}

Result<WeightLease> LeaseBase(WeightSlots& slots, const WeightVersion& base) {
  WeightLease live = slots.AcquireLive();
  RETURN_IF_ERROR(CheckBase(live.empty() ? std::nullopt : std::optional(live.version()), base));
  return live;
}

Status CarryOver(const CarryOverTerms& terms, const WeightLease& base, const std::stop_token& stop) {
  PinToCores(terms.manners.cores);
  GiveWay(terms.manners.nice);
  for (std::size_t p = 0; p < terms.plan.carried.size(); ++p) {
    if (stop.stop_requested()) return Status::Cancelled("cancelled", "while the base was carried over");
    const TimePoint began = terms.clock.Now();
    ASSIGN_OR_RETURN(std::vector<TensorDigest> digests, terms.staging.CarryAndDigest(terms.plan.carried[p], base));
    terms.verifier.NoteCarried(p, std::move(digests));
    if (terms.manners.throttle == nullptr) continue;
    const Duration pause = terms.manners.throttle->PauseAfter(terms.clock.Now() - began);
    if (pause > Duration::zero()) terms.clock.SleepUntil(terms.clock.Now() + pause, stop);
  }
  return OkStatus();
}

}  // namespace bascule
