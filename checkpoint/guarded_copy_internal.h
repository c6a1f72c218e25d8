// Copying out of a mapped file that may shrink, or whose device may fail, meanwhile.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bascule {

// Copies `target.size()` bytes from the mapping at `source`. A page that cannot be read ends the copy instead of the
// process; nothing about `target` is promised then.
//
// Takes SIGBUS over for the whole process with the first call; a signal that no such copy causes goes to whoever had it
// before.
[[nodiscard]] bool GuardedCopy(const std::byte* source, std::span<std::byte> target);

}  // namespace bascule
