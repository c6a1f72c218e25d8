// Others of the process that have what NCCL may take of a device.
#pragma once

#include <memory>
#include <vector>

#include "device/communicator.h"

namespace bascule {

// Communicators of `device` whose peers never come, as many as it takes; `refused` is what one more is told.
inline std::vector<std::unique_ptr<Communicator>> FillDevice(Device& device, Communicators& communicators,
                                                             Status* refused = nullptr) {
  constexpr std::size_t kEnough = 1000;  // more than any device takes
  std::vector<std::unique_ptr<Communicator>> made;
  while (made.size() < kEnough) {
    auto joining = communicators.Join(device, communicators.NewId().value(), 0, 2);
    if (refused != nullptr) *refused = joining.status();
    if (!joining.ok()) break;
    made.push_back(std::move(*joining));
  }
  return made;
}

}  // namespace bascule
