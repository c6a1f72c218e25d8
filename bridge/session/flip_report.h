// What a flip did: when, how long decode stood still, what became of running requests.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/manifest/manifest.h"

namespace bascule {

// What a flip did to a cache other than key/value state.
struct CacheReport {
  std::string cache;
  std::uint64_t dropped = 0;
  std::uint64_t kept = 0;  // entries of versions that are not live, as the cache's policy has it
  friend bool operator==(const CacheReport&, const CacheReport&) = default;
};

// What a flip did to key/value state and other caches; counts requests that were running at the flip, under the policy
// that each one had.
struct KvReport {
  std::uint64_t recomputed = 0;
  std::uint64_t drained = 0;
  std::uint64_t kept = 0;
  std::uint64_t aborted = 0;  // ended by the flip, those that became too stale included
  std::uint64_t recompute_tokens = 0;
  std::uint64_t too_stale = 0;
  std::uint64_t prefix_entries_dropped = 0;
  std::vector<CacheReport> caches = {};
  friend bool operator==(const KvReport&, const KvReport&) = default;
};

struct FlipReport {
  WeightVersion version;
  std::uint64_t step = 0;    // the first decode step that reads it
  double flip_stall_us = 0;  // time decode stood still; 0 when nothing was decoding
  KvReport kv;
};

}  // namespace bascule
