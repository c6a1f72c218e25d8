#include "bridge/plan/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace bascule {

int EditDistance(std::string_view a, std::string_view b, int limit) {
  while (!a.empty() && !b.empty() && a.front() == b.front()) {
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  while (!a.empty() && !b.empty() && a.back() == b.back()) {
    a.remove_suffix(1);
    b.remove_suffix(1);
  }
  const int rows = static_cast<int>(a.size());
  const int columns = static_cast<int>(b.size());
  if (std::abs(rows - columns) > limit) return limit + 1;
  // Cells farther than `limit` from the diagonal cannot matter: they cost more than that in insertions alone.
  std::vector<int> above(b.size() + 1);
  for (int j = 0; j <= columns; ++j) above[static_cast<std::size_t>(j)] = j;
  std::vector<int> here(b.size() + 1, limit + 1);
  for (int i = 1; i <= rows; ++i) {
    const int first = std::max(1, i - limit);
    const int last = std::min(columns, i + limit);
    here[static_cast<std::size_t>(first) - 1] = first == 1 ? i : limit + 1;
    int best = here[static_cast<std::size_t>(first) - 1];
    for (int j = first; j <= last; ++j) {
      const auto column = static_cast<std::size_t>(j);
      const int replace = above[column - 1] + (a[static_cast<std::size_t>(i) - 1] == b[column - 1] ? 0 : 1);
      const int remove = j < i + limit ? above[column] + 1 : limit + 1;
      here[column] = std::min({replace, remove, here[column - 1] + 1});
      best = std::min(best, here[column]);
    }
    if (best > limit) return limit + 1;
    std::swap(above, here);
  }
  return std::min(above[b.size()], limit + 1);
}

std::string_view NearestName(std::string_view name, const std::vector<std::string_view>& names) {
  constexpr int kLimitMax = 16;
  int limit = std::min(kLimitMax, static_cast<int>(name.size()) / 2);
  std::string_view nearest;
  for (const std::string_view candidate : names) {
    const int distance = EditDistance(name, candidate, limit);
    if (distance > limit) continue;
    nearest = candidate;
    if (distance <= 1) break;
    limit = distance - 1;
  }
  return nearest;
}

void SortByDistance(std::string_view name, std::vector<std::string_view>& names) {
  const auto distance = [name](std::string_view other) {
    return EditDistance(name, other, static_cast<int>(std::max(name.size(), other.size())));
  };
  std::ranges::stable_sort(names, {}, distance);
}

std::string FirstOf(const std::vector<std::string>& items) {
  const std::size_t count = std::min(items.size(), kListedMax);
  std::string text =
      fmt::format("{}", fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count), ", "));
  if (items.size() > count) text += fmt::format(" and {} more", items.size() - count);
  return text;
}

}  // namespace bascule
