// Which numbers were committed here, so that numbers in a run only go up and are never reused (I3).
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
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
  // A new run forgets what an earlier one of its name committed.
  void Commit(const std::string& run, std::uint64_t number, bool new_run);
  // 0 when the run has committed nothing.
  std::uint64_t Highest(const std::string& run) const;

 private:
  // Numbers per run. The oldest beyond a bound are dropped: they are then merely below the highest.
  std::map<std::string, std::set<std::uint64_t>> committed_;
  std::string last_run_;
};

}  // namespace bascule
