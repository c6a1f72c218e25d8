// A JSON value as input that nobody vouches for: every access says what it wants, and an error says where that was not.
//
// Thread-safety: thread-compatible; the document outlives it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bascule {

using OrderedJson = nlohmann::ordered_json;

class Fields {
 public:
  // Errors are DataLoss with `reason`; `where` names the value in them. Borrows `value`.
  Fields(const OrderedJson& value, std::string where, std::string_view reason)
      : value_(&value), where_(std::move(where)), reason_(reason) {}

  Status Bad(std::string_view why) const;

  // Members of an object.
  bool Has(std::string_view key) const;
  Result<Fields> Of(std::string_view key) const;
  Result<std::string> Text(std::string_view key) const;
  Result<std::string> TextOrNull(std::string_view key) const;  // null: empty
  Result<bool> Flag(std::string_view key) const;
  Result<std::vector<Fields>> List(std::string_view key) const;

  // The value itself.
  Result<std::string> AsText() const;
  Result<std::int64_t> AsCount() const;  // a whole number from 0 on
  Result<std::vector<Fields>> Items(std::size_t most) const;

 private:
  const OrderedJson* value_;
  std::string where_;
  std::string_view reason_;
};

}  // namespace bascule
