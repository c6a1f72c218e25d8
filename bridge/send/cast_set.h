// Stage: send (plan -> [send] -> transport)
//
// The casts of a connection: what carries twins of the plan (plan/twins.h) over several of its routes at once. There
// are none where the transport has no such thing.
//
// Thread-safety: read-only once made; each cast is its sending rank's thread's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "bridge/plan/plan.h"
#include "bridge/transport/transport.h"

namespace bascule {

class CastSet {
 public:
  struct Entry {
    BucketCast* cast = nullptr;
    std::uint32_t twins = 0;  // how many buckets it carries at once
  };

  CastSet() = default;  // none
  // For `routes`, one per route of the plan, which `dialer` has dialed; null where another process sends. They outlive
  // it. Fails as TransportDialer::Cast.
  static Result<CastSet> Make(const Plan& plan, std::span<const std::unique_ptr<BucketSender>> routes,
                              TransportDialer& dialer);

  // What carries `bucket` with the twins that follow it. Null: nothing does.
  const Entry* Find(std::uint32_t bucket) const;

 private:
  std::map<std::vector<std::int32_t>, std::unique_ptr<BucketCast>> casts_;  // by their routes
  std::map<std::uint32_t, Entry> of_first_;                                 // of twins
};

}  // namespace bascule
