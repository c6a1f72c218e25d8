// Stage: flip (verify -> [flip] -> decode)
//
// Caches of an engine, other than key/value state, whose entries were made by a version: encoder outputs, sampled
// prefixes, a user's own. Each registers once; every flip and rollback tells each of them which version is live, in the
// same critical section, and reports by name how many entries it dropped and how many of other versions it keeps.
//
// Thread-safety: thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "bridge/session/messages.h"

namespace bascule {

// What a flip does to the entries that other versions than the new one made.
enum class CachePolicy { kDrop, kKeep };

struct VersionedCache {
  std::string name;
  CachePolicy policy = CachePolicy::kDrop;
  // Puts every entry that another version than `live` made out of reach; gives their number. Called at a safe point:
  // short, and calls nothing of the engine.
  std::function<std::uint64_t(const WeightVersion& live)> drop;
  // The number of entries that other versions than `live` made.
  std::function<std::uint64_t(const WeightVersion& live)> count_others;
};

class CacheRegistry {
 public:
  // InvalidArgument "bad_options"  one of this name is registered
  Status Register(VersionedCache cache) EXCLUDES(mu_);
  // When it returns the cache is not called any more. Unknown names are ignored.
  void Unregister(const std::string& name) EXCLUDES(mu_);

  // Applies every cache's policy, in the order of registration.
  std::vector<CacheReport> Invalidate(const WeightVersion& live) EXCLUDES(mu_);

 private:
  Mutex mu_;
  std::vector<VersionedCache> caches_ GUARDED_BY(mu_);
};

}  // namespace bascule
