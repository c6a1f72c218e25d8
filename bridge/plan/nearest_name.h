// Which known name was meant: for messages about names that nobody knows.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string_view>
#include <vector>

namespace bascule {

// The edit distance of `a` and `b`; `limit` + 1 when it is above `limit`. Costs at most length times limit.
int EditDistance(std::string_view a, std::string_view b, int limit);

// The one of `names` that `name` may have been meant to be: at most half of its letters differ. Empty: none.
std::string_view NearestName(std::string_view name, const std::vector<std::string_view>& names);

// Nearest first; names equally far stay in their order.
void SortByDistance(std::string_view name, std::vector<std::string_view>& names);

}  // namespace bascule
