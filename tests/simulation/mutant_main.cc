// A product with one rule left out (mutate.py): succeeds when the simulation finds that within a bounded number of
// schedules.
#include <fmt/format.h>

#include "tests/simulation/runner.h"

int main() {
  using namespace bascule::simulation;
  constexpr std::uint64_t kSchedules = 20'000;
  Tally tally;
  const auto finding = RunCampaign({.first_seed = 1, .schedules = kSchedules, .processes = 2}, tally);
  if (!finding) {
    fmt::print("not found in {} schedules\n", tally.schedules);
    return 1;
  }
  fmt::print("found after {} schedules, seed {}: {}\n", tally.schedules, finding->seed,
             finding->what.substr(0, finding->what.find('\n')));
  return 0;
}
