#include "bridge/transport/credits.h"

#include <numeric>

#include "base/status.h"

namespace bascule {

Credits::Credits(std::int32_t count) : taken_(static_cast<std::size_t>(count)), free_(taken_.size()) {
  std::iota(free_.rbegin(), free_.rend(), 0U);
}

std::uint32_t Credits::Next() const {
  CHECK(AnyFree());
  return free_.back();
}

bool Credits::Take(std::uint64_t frame) {
  if (frame >= taken_.size() || taken_[frame]) return false;
  taken_[frame] = true;
  std::erase(free_, frame);
  return true;
}

bool Credits::Return(std::uint64_t frame) {
  if (frame >= taken_.size() || !taken_[frame]) return false;
  taken_[frame] = false;
  free_.push_back(static_cast<std::uint32_t>(frame));
  return true;
}

}  // namespace bascule
