// Sums over the devices of a replica: what tensor-parallel engine ranks need between two products.
//
// Every rank brings memory of its own device and the stream that its work is on. One call is for all ranks, by one
// thread, so that an implementation may group what it hands to a library. It enqueues and returns; on each stream, what
// was enqueued before comes first and what is enqueued afterwards sees the sum. It may be captured (DeviceStream):
// nothing in it waits, allocates or looks at an event.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "device/stream.h"

namespace bascule {

struct CollectivePart {
  float* data = nullptr;           // in memory of the rank's device
  DeviceStream* stream = nullptr;  // of the same device; borrowed
};

class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;
  virtual std::string_view name() const = 0;  // "peer_copy", "nccl"

  // parts[r] is engine rank r's. The first `count` floats of every part become their sum over all ranks, with the same
  // bits on every rank and in every run. The order of the sum is the implementation's.
  //
  // Errors of the devices; after one of them the parts mean nothing. A peer that is gone shows here or, on the host, as
  // a deadline that passes.
  virtual Status AllReduceSum(std::span<const CollectivePart> parts, std::int64_t count) = 0;
};

}  // namespace bascule
