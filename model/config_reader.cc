#include "model/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace bascule {
namespace {

using Json = nlohmann::json;

// No size of a model is larger; their products are checked where memory is sized.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
// Settings are words; they go into messages and into the description of a model.
constexpr std::size_t kMaxTextBytes = 256;

// Values come from a file: a nested one is only named, so that its depth costs no stack.
std::string ShownValue(const Json& value) {
  return value.is_structured() ? value.type_name()
                               : value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80);
}

Status NotAs(std::string_view key, const Json& value, std::string_view wanted) {
  return BadConfig(key, fmt::format("got {}, want {}", ShownValue(value), wanted));
}

// A whole number below 2^63 is signed or unsigned here; larger ones and fractions are floats.
bool IsCount(const Json& value, std::int64_t least) {
  return value.is_number_integer() && value >= least && value <= kMaxSize;
}

}  // namespace

struct ConfigReader::Values {
  Json json;

  const Json* Find(std::string_view key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
};

Status BadConfig(std::string_view key, std::string_view what) {
  return Status::InvalidArgument("bad_config", fmt::format("{}: {}", key, what));
}

Result<ConfigReader> ConfigReader::Parse(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadConfig("config.json", "not a JSON object");
  return ConfigReader(std::make_shared<const Values>(Values{std::move(json)}));
}

bool ConfigReader::Mentions(std::string_view key) const { return values_->json.contains(key); }

bool ConfigReader::Has(std::string_view key) const { return values_->Find(key) != nullptr; }

std::vector<std::string> ConfigReader::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_->json.items()) keys.push_back(key);
  return keys;
}

Result<std::int64_t> ConfigReader::Size(std::string_view key, std::optional<std::int64_t> fallback) const {
  const Json* value = values_->Find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return BadConfig(key, "missing");
  }
  if (!IsCount(*value, 1)) return NotAs(key, *value, fmt::format("a whole number from 1 to {}", kMaxSize));
  return value->get<std::int64_t>();
}

Result<std::int64_t> ConfigReader::Count(std::string_view key, std::int64_t fallback) const {
  const Json* value = values_->Find(key);
  if (value == nullptr) return fallback;
  if (!IsCount(*value, 0)) return NotAs(key, *value, fmt::format("a whole number from 0 to {}", kMaxSize));
  return value->get<std::int64_t>();
}

Result<double> ConfigReader::PositiveNumber(std::string_view key, double fallback) const {
  const Json* value = values_->Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
    return NotAs(key, *value, "a positive number");
  }
  return value->get<double>();
}

Result<bool> ConfigReader::Flag(std::string_view key, bool fallback) const {
  const Json* value = values_->Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return NotAs(key, *value, "true or false");
  return value->get<bool>();
}

Result<std::string> ConfigReader::Text(std::string_view key, std::string_view fallback) const {
  const Json* value = values_->Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string() || value->get_ref<const std::string&>().size() > kMaxTextBytes) {
    return NotAs(key, *value, fmt::format("a text of at most {} bytes", kMaxTextBytes));
  }
  return value->get<std::string>();
}

Result<std::vector<std::string>> ConfigReader::Texts(std::string_view key) const {
  std::vector<std::string> texts;
  const Json* value = values_->Find(key);
  if (value == nullptr) return texts;
  if (!value->is_array()) return NotAs(key, *value, "a list of texts");
  for (const Json& item : *value) {
    if (!item.is_string()) return NotAs(key, item, "a list of texts");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

Result<std::vector<std::int64_t>> ConfigReader::Counts(std::string_view key) const {
  std::vector<std::int64_t> counts;
  const Json* value = values_->Find(key);
  if (value == nullptr) return counts;
  if (!value->is_array()) return NotAs(key, *value, "a list of whole numbers");
  for (const Json& item : *value) {
    if (!IsCount(item, 0)) return NotAs(key, item, "a list of whole numbers");
    counts.push_back(item.get<std::int64_t>());
  }
  return counts;
}

Result<ConfigReader> ConfigReader::Object(std::string_view key) const {
  const Json* value = values_->Find(key);
  if (value != nullptr && !value->is_object()) return NotAs(key, *value, "an object or null");
  return ConfigReader(std::make_shared<const Values>(Values{value == nullptr ? Json::object() : *value}));
}

std::string ConfigReader::Shown(std::string_view key) const {
  const Json* value = values_->Find(key);
  return value == nullptr ? "null" : ShownValue(*value);
}

}  // namespace bascule
