// For messages about names: which known one was meant, and lists that stay short.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace bascule {

// The edit distance of `a` and `b`; `limit` + 1 when it is above `limit`. Costs at most length times limit.
int EditDistance(std::string_view a, std::string_view b, int limit);

// The one of `names` that `name` may have been meant to be: at most half of its letters differ. Empty: none.
std::string_view NearestName(std::string_view name, const std::vector<std::string_view>& names);

// Nearest first; names equally far stay in their order.
void SortByDistance(std::string_view name, std::vector<std::string_view>& names);

// Names that a message lists at most.
inline constexpr std::size_t kListedMax = 20;

// "a, b, c and 17 more".
std::string FirstOf(const std::vector<std::string>& items);

}  // namespace bascule
