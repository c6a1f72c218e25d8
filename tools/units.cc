#include "tools/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tools/outcome.h"

namespace bascule {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 4> kTimes = {{{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
constexpr std::array<Unit, 8> kSizes = {{{"", 1},
                                         {"B", 1},
                                         {"kB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9},
                                         {"KiB", 1024},
                                         {"MiB", 1024.0 * 1024},
                                         {"GiB", 1024.0 * 1024 * 1024}}};

// A positive number and one of `units`; not finite when the text is none.
template <std::size_t N>
double ParseWithUnit(std::string_view text, const std::array<Unit, N>& units) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value > 0)) return NAN;
  const std::string_view name(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units) {
    if (unit.name == name) return value * unit.factor;
  }
  return NAN;
}

template <typename T>
bool ParseWhole(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

}  // namespace

Result<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t number = 0;
  if (!ParseWhole(text, number)) return UsageError(fmt::format("'{}' is no whole number from 0 on", text));
  return number;
}

Result<Duration> ParseDuration(std::string_view text) {
  constexpr double kMaxSeconds = 1e6 * 3600;
  const double seconds = ParseWithUnit(text, kTimes);
  if (!(seconds <= kMaxSeconds)) {
    return UsageError(fmt::format("'{}' is no duration; write it like 500ms, 30s, 2m", text));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Result<std::int64_t> ParseBytes(std::string_view text) {
  constexpr double kMaxBytes = 1e15;
  const double bytes = ParseWithUnit(text, kSizes);
  if (!(bytes <= kMaxBytes)) {
    return UsageError(fmt::format("'{}' is no size; write it like 64MiB, 1.2GB, 4096", text));
  }
  return static_cast<std::int64_t>(std::llround(bytes));
}

Result<std::vector<std::int32_t>> ParseTokens(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    std::int32_t token = 0;
    if (!ParseWhole(item, token)) {
      return UsageError(fmt::format("'{}' is no token id; write them like 1,2,3", item));
    }
    tokens.push_back(token);
    begin = end + 1;
  }
  return tokens;
}

}  // namespace bascule
