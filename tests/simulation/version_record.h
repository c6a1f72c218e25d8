// What has been published in a schedule, and what has gone live where.
//
// Thread-safety: confined to one thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "bridge/manifest/manifest.h"
#include "tests/simulation/contents.h"

namespace bascule::simulation {

class VersionRecord {
 public:
  void Published(const Content& content) { contents_[content.digest()] = &content; }
  // What was published with this digest; null: nothing was.
  const Content* Find(const Hash256& digest) const {
    const auto found = contents_.find(digest);
    return found == contents_.end() ? nullptr : found->second;
  }

  // At that engine, in one of its lives.
  void WentLive(const std::string& address, const WeightVersion& version) { live_[address].push_back(version); }
  bool WasLive(const std::string& address, const WeightVersion& version) const {
    const auto found = live_.find(address);
    return found != live_.end() && std::ranges::find(found->second, version) != found->second.end();
  }
  bool WasLiveSomewhere(const WeightVersion& version) const {
    return std::ranges::any_of(live_, [&](const auto& engine) { return WasLive(engine.first, version); });
  }

 private:
  std::map<Hash256, const Content*> contents_;
  std::map<std::string, std::vector<WeightVersion>> live_;  // by address
};

}  // namespace bascule::simulation
