#include "tests/simulation/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tests/simulation/random.h"

namespace bascule::simulation {
namespace {

constexpr std::uint64_t kStepsHit = 220;  // two or three publishes to two engines
constexpr std::uint64_t kMostFaults = 7;

constexpr std::array<std::string_view, kFaultKinds> kNames = {
    "drop",          "duplicate",   "reorder",        "corrupt",      "delay",        "cut",
    "partition",     "kill_engine", "restart_engine", "stall_engine", "kill_trainer", "restart_trainer",
    "stall_trainer", "cancel",      "rollback",       "hold_lease",   "fail_copy",    "leap"};

}  // namespace

std::string_view FaultName(FaultKind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

FaultSchedule MakeFaultSchedule(std::uint64_t seed) {
  Random random(seed ^ 0xfa017);
  FaultSchedule schedule;
  for (std::uint64_t left = random.Below(kMostFaults + 1); left > 0; --left) {
    Fault fault{.kind = static_cast<FaultKind>(random.Below(kFaultKinds)),
                .at = random.Below(kStepsHit),
                .detail = random.Next() >> 16};
    if (random.OneIn(2)) fault.aim = static_cast<SessionState>(random.Between(1, 6));
    if (fault.aim == SessionState::kSealed && HitsMessage(fault.kind)) {
      // A sealed session says nothing and is told nothing, unless its engine is slow and its publisher gives up.
      constexpr std::uint64_t kShortStall = 100;
      schedule.push_back({FaultKind::kStallEngine, fault.at, fault.aim, kShortStall});
      schedule.push_back({FaultKind::kCancel, fault.at, fault.aim, 0});
    }
    schedule.push_back(fault);
  }
  std::stable_sort(schedule.begin(), schedule.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return schedule;
}

std::string ToString(const Fault& fault) {
  const std::string aim = fault.aim ? fmt::format("/{}", SessionStateName(*fault.aim)) : "";
  return fmt::format("{}@{}{}[{:x}]", FaultName(fault.kind), fault.at, aim, fault.detail);
}

}  // namespace bascule::simulation
