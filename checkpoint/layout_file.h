// A layout as a JSON file, so that a plan can be made of two sides that are not there: docs/layout_file.md.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

// One object, one line.
std::string WriteLayout(const Layout& layout);

// Read as hostile input; `where` (the file's path) stands in front of every complaint.
//
// DataLoss "bad_layout_file"  no JSON, a member that is missing, twice there or of another type, or what CheckLayout
//                             says of the numbers
Result<Layout> ReadLayout(std::string_view text, const std::string& where);

// The most that ReadLayoutFile reads.
inline constexpr std::int64_t kLayoutFileBytesMax = std::int64_t{1} << 30;

// As ReadLayout, and what Directory::ReadText says of the file.
Result<Layout> ReadLayoutFile(const std::string& path);

}  // namespace bascule
