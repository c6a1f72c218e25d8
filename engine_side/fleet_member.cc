#include "engine_side/fleet_member.h"

#include <algorithm>
#include <utility>

#include "base/backoff.h"
#include "base/log.h"

namespace bascule {

FleetMember::FleetMember(FleetMemberOptions options, WeightReceiver& receiver, FleetLink& link, Clock& clock)
    : options_(std::move(options)), receiver_(receiver), link_(link), clock_(clock) {}

FleetMember::~FleetMember() {
  if (!worker_.joinable()) return;
  worker_.RequestStop();
  worker_.Join();
  // Best effort: a publisher that cannot be told notices that nothing comes any more.
  static_cast<void>(link_.Leave(options_.address, instance_, Deadline::After(clock_, options_.call_timeout)));
}

Result<FleetWelcome> FleetMember::Join(Deadline deadline, const std::stop_token& stop) {
  for (int failures = 0;; ++failures) {
    Result<FleetWelcome> welcome = Say();
    if (welcome.ok()) {
      worker_ =
          Worker("fleet", [this, first = welcome->heartbeat](const std::stop_token& own) { KeepInTouch(first, own); });
      return welcome;
    }
    if (welcome.status().code() == StatusCode::kInvalidArgument) return welcome;  // no try will do
    const TimePoint again = clock_.Now() + BackoffDelay(failures + 1, options_.first_retry, options_.retry_cap);
    if (again >= deadline.point()) return welcome;
    if (!clock_.SleepUntil(again, stop)) return Status::Cancelled("cancelled", welcome.status().ToString());
  }
}

Result<FleetWelcome> FleetMember::Say() {
  const ReceiverStatus status = receiver_.status();
  const FleetHeartbeat heartbeat{.address = options_.address,
                                 .instance = instance_,
                                 .live = status.live.value_or(WeightVersion{}),
                                 .ready = status.Ready(),
                                 .last_error = status.last_error};
  Result<FleetWelcome> welcome = link_.Join(heartbeat, Deadline::After(clock_, options_.call_timeout));
  if (!welcome.ok()) return welcome;
  if (welcome->required) receiver_.RequireInPlaceOf(status.live, *welcome->required);
  MutexLock lock(mu_);
  welcome_ = *welcome;
  return welcome;
}

FleetWelcome FleetMember::welcome() const {
  MutexLock lock(mu_);
  return welcome_;
}

void FleetMember::KeepInTouch(Duration first, const std::stop_token& stop) {
  Duration wait = first;
  int failures = 0;
  while (clock_.SleepUntil(clock_.Now() + wait, stop)) {
    const Result<FleetWelcome> welcome = Say();
    if (welcome.ok()) {
      failures = 0;
      wait = welcome->heartbeat;
      continue;
    }
    if (failures++ == 0) {
      LogWarn("fleet_out_of_touch", "address={} why=\"{}\"", options_.address, welcome.status().ToString());
    }
    wait = std::max(wait, BackoffDelay(failures, options_.first_retry, options_.retry_cap));
  }
}

}  // namespace bascule
