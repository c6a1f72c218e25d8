// The versions that a cache daemon hands out: for each one object, frozen, which is a manifest and the memory of every
// engine rank. An object is never changed; a new version is a new object. It goes when the store has let it go and
// nobody maps it any more: the store holds descriptors, and the kernel counts.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bridge/manifest/manifest.h"
#include "engine_side/cache_daemon/messages.h"

namespace bascule {

// Thread-compatible; read-only once made.
struct VersionObject {
  WeightVersion version;
  UniqueFd manifest;
  std::int64_t manifest_bytes = 0;
  std::vector<UniqueFd> ranks;
  std::vector<std::int64_t> rank_bytes;

  std::int64_t Bytes() const;  // of all ranks
};

// What is live in the daemon, since which change.
struct LiveObject {
  std::uint64_t sequence = 0;
  CacheChange change = CacheChange::kHeld;
  std::shared_ptr<const VersionObject> object;  // shared with the store and with who hands it out at this moment
};

class VersionStore {
 public:
  // Keeps so many versions, at least one.
  explicit VersionStore(int keep) : keep_(keep) {}

  // `object` is live now: new, or found by Find. The one that has been live longest ago goes where there are too many.
  void MakeLive(std::shared_ptr<const VersionObject> object, CacheChange change) EXCLUDES(mu_);
  std::optional<LiveObject> Live() const EXCLUDES(mu_);
  std::shared_ptr<const VersionObject> Find(const WeightVersion& version) const EXCLUDES(mu_);  // or null
  std::shared_ptr<const VersionObject> FindNumber(std::uint64_t number) const
      EXCLUDES(mu_);                                                            // the newest such, or null
  std::vector<std::shared_ptr<const VersionObject>> All() const EXCLUDES(mu_);  // the live one first

 private:
  const int keep_;
  mutable Mutex mu_;
  std::deque<std::shared_ptr<const VersionObject>> objects_ GUARDED_BY(mu_);  // live, then those before it
  std::uint64_t sequence_ GUARDED_BY(mu_) = 0;
  CacheChange change_ GUARDED_BY(mu_) = CacheChange::kHeld;
};

}  // namespace bascule
