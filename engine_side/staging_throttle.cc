#include "engine_side/staging_throttle.h"

#include <algorithm>
#include <utility>

namespace bascule {
namespace {

constexpr double kNewest = 0.25;    // weight of the newest observation
constexpr double kLeastCost = 0.1;  // a step that happens to be quick must not let everything loose
constexpr double kMostCost = 100;
constexpr std::size_t kMostRows = 1024;  // different numbers of rows that are remembered
constexpr Duration kMostPause = std::chrono::milliseconds(200);
constexpr Duration kIdleAfter = std::chrono::milliseconds(50);  // without a step, beyond what one takes

double Ratio(Duration a, Duration b) { return static_cast<double>(a.count()) / static_cast<double>(b.count()); }

}  // namespace

void StagingThrottle::StepTook(std::int64_t rows, Duration took) {
  MutexLock lock(mu_);
  const Duration staged = std::exchange(staged_, Duration::zero());
  last_end_ = clock_.Now();
  last_took_ = took;
  const auto known = undisturbed_.find(rows);
  if (staged == Duration::zero()) {
    if (known != undisturbed_.end()) {
      known->second += std::chrono::duration_cast<Duration>(kNewest * (took - known->second));
    } else if (undisturbed_.size() < kMostRows) {
      undisturbed_[rows] = took;
    }
  } else if (known != undisturbed_.end() && known->second > Duration::zero() && took > Duration::zero()) {
    const double beside = std::clamp(Ratio(staged, took), kLeastShare / 10, 1.0);
    const double cost = (Ratio(took, known->second) - 1) / beside;
    cost_ += kNewest * (std::clamp(cost, kLeastCost, kMostCost) - cost_);
  }
}

Duration StagingThrottle::PauseAfter(Duration work) {
  MutexLock lock(mu_);
  staged_ += work;
  if (!Decoding()) return Duration::zero();
  const double share = ShareNow();
  return std::min(kMostPause, std::chrono::duration_cast<Duration>(work * (1 / share - 1)));
}

double StagingThrottle::share() const {
  MutexLock lock(mu_);
  return ShareNow();
}

bool StagingThrottle::Decoding() const {
  return last_took_ > Duration::zero() && clock_.Now() <= last_end_ + 2 * last_took_ + kIdleAfter;
}

double StagingThrottle::ShareNow() const { return std::clamp((slowdown_ - 1) / cost_, kLeastShare, 1.0); }

}  // namespace bascule
