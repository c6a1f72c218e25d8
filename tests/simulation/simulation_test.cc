// The simulation as a test, and as a program:
//
//   simulation_test --schedules N [--first SEED] [--processes P]   runs N schedules; prints coverage, or the finding,
//                                                                  and every 10 000 how far it is
//   simulation_test --seed N                                       runs one, shrinks it if it fails, prints its steps
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "tests/simulation/runner.h"

namespace bascule::simulation {
namespace {

constexpr std::uint64_t kReportEvery = 10'000;  // schedules

int Processors() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void PrintFaults(const FaultSchedule& faults) {
  fmt::print("faults:");
  for (const Fault& fault : faults) fmt::print(" {}", ToString(fault));
  fmt::print("\n");
}

// The schedule with as few faults as it takes, step by step.
int Explain(const Finding& finding) {
  fmt::print("seed {} breaks a promise: {}\n", finding.seed, finding.what);
  PrintFaults(MakeFaultSchedule(finding.seed));
  const FaultSchedule fewest = Shrink(finding);
  fmt::print("with the fewest ");
  PrintFaults(fewest);
  std::fflush(nullptr);
  Tally tally;
  RunSchedule(finding.seed, fewest, tally, /*log=*/true);
  fmt::print("replay: simulation_test --seed {}\n", finding.seed);
  return 1;
}

int RunSeed(std::uint64_t seed) {
  if (const auto finding = RunAlone(seed, MakeFaultSchedule(seed))) return Explain(*finding);
  PrintFaults(MakeFaultSchedule(seed));
  Tally tally;
  RunSchedule(seed, MakeFaultSchedule(seed), tally, /*log=*/true);
  return 0;
}

int RunMany(const Campaign& campaign) {
  Tally tally;
  std::optional<Finding> finding;
  const std::uint64_t end = campaign.first_seed + campaign.schedules;
  const TimePoint began = Clock::Real().Now();
  for (std::uint64_t seed = campaign.first_seed; seed < end && !finding; seed += kReportEvery) {
    const std::uint64_t count = std::min(kReportEvery, end - seed);
    finding = RunCampaign({.first_seed = seed, .schedules = count, .processes = campaign.processes}, tally);
    if (finding || seed + count == end) continue;
    const double seconds = MsOf(Clock::Real().Now() - began) / 1000;
    fmt::print("seeds {} to {} are clean, {:.0f}/s; what is left: --first {} --schedules {}\n", campaign.first_seed,
               seed + count - 1, static_cast<double>(tally.schedules) / seconds, seed + count, end - seed - count);
    std::fflush(nullptr);
  }
  fmt::print("{}", Summary(tally));
  if (finding) return Explain(*finding);
  if (const std::string unreached = Unreached(tally); !unreached.empty()) fmt::print("unreached:{}\n", unreached);
  return 0;
}

int Main(int argc, char** argv) {
  Campaign campaign{.first_seed = 1, .schedules = 0, .processes = Processors()};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--seed") return RunSeed(value);
    if (name == "--schedules") campaign.schedules = value;
    if (name == "--first") campaign.first_seed = value;
    if (name == "--processes") campaign.processes = static_cast<int>(value);
  }
  if (campaign.schedules > 0) return RunMany(campaign);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSchedules = 500;
#else
constexpr std::uint64_t kSchedules = 10'000;
#endif

TEST(SimulationTest, TenThousandSchedulesWithFaultsBreakNoPromiseAndStrikeInEveryState) {
  Tally tally;
  const auto finding = RunCampaign({.first_seed = 1, .schedules = kSchedules, .processes = Processors()}, tally);
  fmt::print("{}", Summary(tally));
  if (finding) Explain(*finding);

  EXPECT_FALSE(finding.has_value());
  EXPECT_EQ(tally.schedules, kSchedules);
  if (kSchedules == 10'000) {
    EXPECT_EQ(Unreached(tally), "");
  }
}

TEST(SimulationTest, ASeedReplaysStepByStep) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Tally tally;
    const Outcome first = RunSchedule(seed, MakeFaultSchedule(seed), tally);
    const Outcome again = RunSchedule(seed, MakeFaultSchedule(seed), tally);

    ASSERT_TRUE(first.status.ok()) << "seed " << seed << ": " << first.status.ToString();
    EXPECT_EQ(first.trace, again.trace) << "seed " << seed;
  }
}

}  // namespace
}  // namespace bascule::simulation

int main(int argc, char** argv) { return bascule::simulation::Main(argc, argv); }
