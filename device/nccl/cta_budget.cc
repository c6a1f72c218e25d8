#include "device/nccl/cta_budget.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace bascule {
namespace {

// The rest holds what NCCL takes for one operation of another user's: 32 CTAs at most, unless it is told otherwise.
constexpr int kShareOf4 = 3;

// Each makes NCCL take as many channels as it says, or lets it, whatever its caller asks for.
constexpr const char* kForcing[] = {"NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS",
                                    "NCCL_MIN_P2P_NCHANNELS"};
constexpr int kChannelsMax = 64;

int CtasOf(int asked) {
  int ctas = asked;
  for (const char* const name : kForcing) {
    const char* const set = std::getenv(name);
    if (set != nullptr) ctas = std::max(ctas, std::min(std::atoi(set), kChannelsMax));
  }
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(ctas)));  // as NCCL does for sends and receives
}

}  // namespace

CtaShare& CtaShare::operator=(CtaShare&& other) noexcept {
  GiveBack();
  budget_ = std::exchange(other.budget_, nullptr);
  ordinal_ = other.ordinal_;
  ctas_ = other.ctas_;
  return *this;
}

void CtaShare::GiveBack() {
  CtaBudget* const budget = std::exchange(budget_, nullptr);
  if (budget != nullptr) budget->GiveBack(ordinal_, ctas_);
}

CtaBudget& CtaBudget::Get() {
  static auto* const budget = new CtaBudget;
  return *budget;
}

Result<CtaShare> CtaBudget::Take(const DeviceDescription& device, int ctas) {
  const int wanted = CtasOf(ctas);
  const int all = device.multiprocessors * kShareOf4 / 4;
  const MutexLock lock(mu_);
  Taken& taken = taken_[device.ordinal];
  if (taken.ctas + wanted > all) {
    return Status::ResourceExhausted(
        "nccl_too_many",
        fmt::format("device {} {}: {} communicators have {} of {} CTAs, and one more needs {}; give each rank fewer "
                    "peers, close what is not used, or take another transport",
                    device.ordinal, device.uuid.ToString(), taken.communicators, taken.ctas, all, wanted));
  }
  ++taken.communicators;
  taken.ctas += wanted;
  return CtaShare(*this, device.ordinal, wanted);
}

void CtaBudget::GiveBack(int ordinal, int ctas) {
  const MutexLock lock(mu_);
  Taken& taken = taken_[ordinal];
  --taken.communicators;
  taken.ctas -= ctas;
}

}  // namespace bascule
