// How a verified version becomes live.
//
// Thread-safety: thread-compatible (a value).
#pragma once

namespace bascule {

enum class FlipMode {
  kShadow,   // the slots exchange roles: the stall is a pointer swap, the addresses of live weights change
  kInPlace,  // the slots exchange their bytes: the stall is a copy and a digest of all of them, no address changes
};

}  // namespace bascule
