// Typed, checked access to the keys of a config.json. A key that is absent and one that is null are the same: Hugging
// Face writes both for "not set".
//
// InvalidArgument "bad_config", with the key and the value, wherever a value is not what its key asks for.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bascule {

Status BadConfig(std::string_view key, std::string_view what);

class ConfigReader {
 public:
  static Result<ConfigReader> Parse(std::string_view text);

  bool Has(std::string_view key) const;
  // Whether the key is there, though it be null.
  bool Mentions(std::string_view key) const;
  std::vector<std::string> Keys() const;  // sorted
  // A whole number from 1 to 2^31; without a fallback the key must be there.
  Result<std::int64_t> Size(std::string_view key, std::optional<std::int64_t> fallback = {}) const;
  // The same, and 0.
  Result<std::int64_t> Count(std::string_view key, std::int64_t fallback) const;
  Result<double> PositiveNumber(std::string_view key, double fallback) const;
  Result<bool> Flag(std::string_view key, bool fallback = false) const;
  // At most 256 bytes.
  Result<std::string> Text(std::string_view key, std::string_view fallback) const;
  Result<std::vector<std::string>> Texts(std::string_view key) const;    // empty where it is absent
  Result<std::vector<std::int64_t>> Counts(std::string_view key) const;  // empty where it is absent
  // The object under `key`; one without keys where it is absent.
  Result<ConfigReader> Object(std::string_view key) const;
  // For messages; short, whatever the value is.
  std::string Shown(std::string_view key) const;

 private:
  struct Values;
  explicit ConfigReader(std::shared_ptr<const Values> values) : values_(std::move(values)) {}
  std::shared_ptr<const Values> values_;  // shared: readers of one text are copied around
};

}  // namespace bascule
