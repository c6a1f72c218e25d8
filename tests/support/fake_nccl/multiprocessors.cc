#include "tests/support/fake_nccl/multiprocessors.h"

#include <algorithm>

namespace bascule::fake_nccl {

Multiprocessors& Multiprocessors::Get() {
  static auto* const multiprocessors = new Multiprocessors;
  return *multiprocessors;
}

bool Multiprocessors::Launch(const void* kernel, int device, int multiprocessors, int ctas) {
  const MutexLock lock(mu_);
  Device& on = devices_[device];
  if (on.running.contains(kernel)) return true;
  if (std::ranges::find(on.waiting, kernel, &Waiting::kernel) == on.waiting.end()) on.waiting.push_back({kernel, ctas});
  while (!on.waiting.empty() && on.taken + on.waiting.front().ctas <= multiprocessors) {
    on.running.emplace(on.waiting.front().kernel, on.waiting.front().ctas);
    on.taken += on.waiting.front().ctas;
    on.waiting.pop_front();
  }
  return on.running.contains(kernel);
}

void Multiprocessors::End(const void* kernel, int device) {
  const MutexLock lock(mu_);
  Device& on = devices_[device];
  const auto ended = on.running.extract(kernel);
  if (!ended.empty()) on.taken -= ended.mapped();
  std::erase_if(on.waiting, [&](const Waiting& waiting) { return waiting.kernel == kernel; });
}

int Multiprocessors::CountTaken() {
  const MutexLock lock(mu_);
  int taken = 0;
  for (const auto& [number, device] : devices_) taken += device.taken;
  return taken;
}

int Multiprocessors::CountWaiting() {
  const MutexLock lock(mu_);
  std::size_t waiting = 0;
  for (const auto& [number, device] : devices_) waiting += device.waiting.size();
  return static_cast<int>(waiting);
}

}  // namespace bascule::fake_nccl
