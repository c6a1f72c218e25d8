// A plan carried out in memory with the host kernels, without buckets on a wire: what engine ranks hold afterwards.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/layout/layout.h"
#include "bridge/plan/plan.h"
#include "bridge/send/weight_source.h"
#include "kernels/digest.h"

namespace bascule {

struct CarriedOut {
  std::vector<std::vector<std::string>> memory;  // bytes per engine rank, per local tensor; 0xee where nothing wrote
  std::vector<TensorDigest> sent;                // per Plan::tensors: of the slices that count, as the senders see it
  std::vector<TensorDigest> received;            // the same, of what was written
  std::int64_t counted_bytes = 0;                // of the slices that count
};

CarriedOut CarryOut(const Plan& plan, const WeightSource& source, const Layout& engine);

}  // namespace bascule
