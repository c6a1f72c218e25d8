#include "engine_side/decode/kv_pages.h"

#include "base/status.h"

namespace bascule {

KvPages::KvPages(std::int64_t total) : holds_(static_cast<std::size_t>(total)) {
  // Taken from the back: low pages first, so that memory is touched no further than it is used.
  for (std::int64_t page = total - 1; page >= 0; --page) free_.push_back(static_cast<std::int32_t>(page));
}

std::int32_t KvPages::Take() {
  CHECK(!free_.empty());
  const std::int32_t page = free_.back();
  free_.pop_back();
  Share(page);
  return page;
}

void KvPages::Share(std::int32_t page) {
  if (at(page).requests++ == 0) ++used_;
}

void KvPages::Release(std::int32_t page) {
  CHECK(at(page).requests > 0);
  if (--at(page).requests > 0) return;
  --used_;
  FreeIfUnheld(page);
}

void KvPages::SetCached(std::int32_t page, bool cached) {
  CHECK(at(page).cached != cached);
  at(page).cached = cached;
  FreeIfUnheld(page);
}

void KvPages::FreeIfUnheld(std::int32_t page) {
  if (at(page).requests == 0 && !at(page).cached) free_.push_back(page);
}

}  // namespace bascule
