// What a file that is not what its name says is: the answer that a person with a failed download needs.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace bascule {

// So many bytes of a file's beginning decide.
inline constexpr std::size_t kForeignHeadBytes = 512;

// "a git-lfs pointer ...", "an HTML or XML page ...", "a zip archive ..."; empty when `head` gives no sign.
std::string ForeignKind(std::span<const std::byte> head);

}  // namespace bascule
