// What a flip did: when, how long decode stood still, what became of running requests.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>

#include "bridge/manifest/manifest.h"

namespace bascule {

// What a flip did to key/value state; counts requests that were running at the flip.
struct KvReport {
  std::uint64_t recomputed = 0;
  std::uint64_t drained = 0;
  std::uint64_t kept = 0;
  std::uint64_t aborted = 0;
  std::uint64_t recompute_tokens = 0;
  friend bool operator==(const KvReport&, const KvReport&) = default;
};

struct FlipReport {
  WeightVersion version;
  std::uint64_t step = 0;    // the first decode step that reads it
  double flip_stall_us = 0;  // time decode stood still; 0 when nothing was decoding
  KvReport kv;
};

}  // namespace bascule
