// Where a box of elements lies in memory: what a reader gives, and what a frame that stays in one process may name
// instead of holding it.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/box.h"

namespace bascule {

// Thread-safety: thread-compatible (a value).
struct BoxView {
  const std::byte* base = nullptr;
  BoxPlace place;                      // from `base` on
  std::shared_ptr<const void> memory;  // whoever has it may read the box; null: see who gave the view
};

}  // namespace bascule
