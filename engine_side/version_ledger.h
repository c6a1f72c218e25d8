// Which numbers were committed here, so that numbers in a run only go up and are never reused (I3).
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

class VersionLedger {
 public:
  // May the offered version come? `live_run` is the run of the live version, empty while nothing is live. A run goes on
  // while it is live or was the last to commit (a rollback may have gone back to an older one).
  //
  // FailedPrecondition "unknown_run" | "version_reused" | "stale_version"
  Status Check(const ManifestOffer& offer, const std::string& live_run) const;
  // May it, with this digest? A replica that has lost its weights may be brought what it has committed before, but no
  // other bytes under that number.
  //
  // FailedPrecondition "version_reused"
  Status CheckDigest(const ManifestOffer& offer, const Hash256& digest, const std::string& live_run) const;
  // A new run forgets what an earlier one of its name committed. A run that the replica had when it lost its weights
  // (nothing `was_live`) goes on.
  void Commit(const ManifestOffer& offer, const Hash256& digest, bool was_live);
  // 0 when the run has committed nothing. Without a run: of the one that was the last to commit.
  std::uint64_t Highest(const std::string& run) const;

 private:
  // By run and number the digest. The oldest beyond a bound are dropped: they are then merely below the highest.
  std::map<std::string, std::map<std::uint64_t, Hash256>> committed_;
  std::string last_run_;
};

}  // namespace bascule
