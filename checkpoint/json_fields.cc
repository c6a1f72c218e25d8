#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/json_fields_internal.h"

namespace bascule {

Status Fields::Bad(std::string_view why) const { return Status::DataLoss(reason_, fmt::format("{}: {}", where_, why)); }

bool Fields::Has(std::string_view key) const { return value_->is_object() && value_->contains(key); }

Result<Fields> Fields::Of(std::string_view key) const {
  if (!value_->is_object()) return Bad("not an object");
  const auto found = value_->find(key);
  if (found == value_->end()) return Bad(fmt::format("no member \"{}\"", key));
  return Fields(*found, fmt::format("{}.{}", where_, key), reason_);
}

Result<std::string> Fields::Text(std::string_view key) const {
  ASSIGN_OR_RETURN(const Fields member, Of(key));
  return member.AsText();
}

Result<std::string> Fields::TextOrNull(std::string_view key) const {
  ASSIGN_OR_RETURN(const Fields member, Of(key));
  if (member.value_->is_null()) return std::string();
  return member.AsText();
}

Result<bool> Fields::Flag(std::string_view key) const {
  ASSIGN_OR_RETURN(const Fields member, Of(key));
  if (!member.value_->is_boolean()) return member.Bad("not true or false");
  return member.value_->get<bool>();
}

Result<std::vector<Fields>> Fields::List(std::string_view key) const {
  ASSIGN_OR_RETURN(const Fields member, Of(key));
  return member.Items(std::numeric_limits<std::size_t>::max());
}

Result<std::string> Fields::AsText() const {
  if (!value_->is_string()) return Bad("not a string");
  return value_->get<std::string>();
}

Result<std::int64_t> Fields::AsCount() const {
  if (!value_->is_number_integer() || *value_ < 0 || *value_ > std::numeric_limits<std::int64_t>::max()) {
    return Bad("not a whole number from 0 on");
  }
  return value_->get<std::int64_t>();
}

Result<std::vector<Fields>> Fields::Items(std::size_t most) const {
  if (!value_->is_array()) return Bad("not a list");
  if (value_->size() > most) return Bad(fmt::format("{} items, at most {}", value_->size(), most));
  std::vector<Fields> items;
  items.reserve(value_->size());
  for (const OrderedJson& item : *value_) items.emplace_back(item, where_, reason_);
  return items;
}

}  // namespace bascule
