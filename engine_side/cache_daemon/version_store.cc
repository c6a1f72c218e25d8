#include "engine_side/cache_daemon/version_store.h"

#include <algorithm>
#include <numeric>

namespace bascule {

std::int64_t VersionObject::Bytes() const {
  return std::accumulate(rank_bytes.begin(), rank_bytes.end(), std::int64_t{0});
}

void VersionStore::MakeLive(std::shared_ptr<const VersionObject> object, CacheChange change) {
  std::vector<std::shared_ptr<const VersionObject>> dropped;  // let go outside the lock
  MutexLock lock(mu_);
  std::erase(objects_, object);
  objects_.push_front(std::move(object));
  while (std::ssize(objects_) > keep_) {
    dropped.push_back(std::move(objects_.back()));
    objects_.pop_back();
  }
  ++sequence_;
  change_ = change;
}

std::optional<LiveObject> VersionStore::Live() const {
  MutexLock lock(mu_);
  if (objects_.empty()) return std::nullopt;
  return LiveObject{sequence_, change_, objects_.front()};
}

std::shared_ptr<const VersionObject> VersionStore::Find(const WeightVersion& version) const {
  MutexLock lock(mu_);
  const auto found = std::ranges::find_if(objects_, [&](const auto& object) { return object->version == version; });
  return found == objects_.end() ? nullptr : *found;
}

std::shared_ptr<const VersionObject> VersionStore::FindNumber(std::uint64_t number) const {
  MutexLock lock(mu_);
  const auto found =
      std::ranges::find_if(objects_, [&](const auto& object) { return object->version.number == number; });
  return found == objects_.end() ? nullptr : *found;
}

std::vector<std::shared_ptr<const VersionObject>> VersionStore::All() const {
  MutexLock lock(mu_);
  return {objects_.begin(), objects_.end()};
}

}  // namespace bascule
