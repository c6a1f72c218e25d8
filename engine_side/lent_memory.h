// A version that lies in memory already and that its holder lends: a cache daemon to the engines of its host.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <memory>
#include <vector>

#include "device/buffer.h"

namespace bascule {

struct LentMemory {
  std::vector<std::unique_ptr<DeviceBuffer>> ranks;  // as WeightSlots::ReserveLent takes them
  bool check = true;                                 // digest every byte before the flip; else the seal is believed
};

}  // namespace bascule
