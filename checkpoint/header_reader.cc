#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked_math.h"
#include "checkpoint/header_reader_internal.h"
#include "checkpoint/printable_internal.h"

namespace bascule {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

// Types that the format has and that are not read: their elements are smaller than a byte, or no engine stores them.
constexpr std::array<std::string_view, 7> kUnreadTypes = {"F4",  "F6_E2M3",     "F6_E3M2",    "F8_E8M0",
                                                          "C64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};

// Collects entries as the parser meets them, so that a key that comes twice is seen: a parser that builds a map keeps
// one of the two without a word. Nesting is refused where it begins, so depth is bounded.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  const Status& status() const { return status_; }
  SafetensorsHeader& header() { return header_; }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kRoot;
      return true;
    }
    if (place_ != Place::kRoot) return Unwanted("an object");
    place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kEntry;
    fields_.clear();
    entry_ = {};
    offsets_.clear();
    return true;
  }

  bool key(std::string& key) override {
    std::set<std::string>& seen = place_ == Place::kRoot ? keys_ : fields_;
    if (!seen.insert(key).second) return DuplicateKey(key);
    (place_ == Place::kRoot ? key_ : field_) = key;
    if (place_ == Place::kRoot) return key == kMetadataKey || CheckName(key);
    const bool known = key == "dtype" || key == "shape" || key == "data_offsets";
    if (place_ == Place::kEntry && !known) return BadEntry(fmt::format("unknown field \"{}\"", Printable(key)));
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry && !EndEntry()) return false;
    place_ = place_ == Place::kRoot ? Place::kOutside : Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry || field_ == "dtype") return Unwanted("an array");
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(field_, text);
      return true;
    }
    if (place_ != Place::kEntry || field_ != "dtype") return Unwanted("a string");
    return ReadDType(text);
  }

  bool number_unsigned(std::uint64_t number) override {
    const std::optional<std::int64_t> value = CheckedCast<std::int64_t>(number);
    if (!value) return Unwanted("a number above 2^63");
    if (place_ == Place::kShape) {
      if (entry_.spec.shape.size() == kMaxDims) return BadEntry(fmt::format("more than {} dimensions", kMaxDims));
      entry_.spec.shape.push_back(*value);
      return true;
    }
    if (place_ != Place::kOffsets) return Unwanted("a number");
    if (offsets_.size() == 2) return BadEntry("more than two data_offsets");
    offsets_.push_back(*value);
    return true;
  }

  bool null() override { return Unwanted("null"); }
  bool boolean(bool) override { return Unwanted("a boolean"); }
  bool number_integer(std::int64_t) override { return Unwanted("a negative number"); }
  bool number_float(double, const std::string&) override {
    return Unwanted("a number that is no whole one below 2^63");
  }
  bool binary(binary_t&) override { return Unwanted("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail("header_json", fmt::format("not JSON at byte {} of the header", position));
  }

 private:
  enum class Place { kOutside, kRoot, kMetadata, kEntry, kShape, kOffsets };

  bool Fail(std::string_view reason, std::string message) {
    status_ = Status::DataLoss(reason, std::move(message));
    return false;
  }
  bool BadEntry(std::string_view what) {
    return Fail("bad_entry", fmt::format("tensor={}: {}", Printable(key_), what));
  }
  bool BadMetadata(std::string_view path, std::string_view what) {
    return Fail("bad_metadata", fmt::format("{} is {}", path, what));
  }

  // A value of the wrong type, wherever it stands.
  bool Unwanted(std::string_view what) {
    switch (place_) {
      case Place::kOutside:
        return Fail("header_json", fmt::format("the header is {}, not an object", what));
      case Place::kRoot:
        return key_ == kMetadataKey ? BadMetadata(kMetadataKey, what) : BadEntry(fmt::format("is {}", what));
      case Place::kMetadata:
        return BadMetadata(fmt::format("{}.{}", kMetadataKey, Printable(field_)), what);
      default:
        return BadEntry(fmt::format("{} has {}", field_, what));
    }
  }

  bool DuplicateKey(std::string_view key) {
    const std::string place = place_ == Place::kEntry ? fmt::format("tensor={}: ", Printable(key_)) : "";
    return Fail("duplicate_key", fmt::format("{}duplicate key \"{}\"", place, Printable(key)));
  }

  bool CheckName(const std::string& name) {
    const Status status = CheckTensors({{name, DType::kU8, {}}});
    return status.ok() || Fail("bad_name", fmt::format("tensor={}: {}", Printable(name), Printable(status.message())));
  }

  bool ReadDType(std::string_view name) {
    if (const Result<DType> dtype = ParseDType(name); dtype.ok()) {
      entry_.spec.dtype = *dtype;
      return true;
    }
    const bool in_format = std::find(kUnreadTypes.begin(), kUnreadTypes.end(), name) != kUnreadTypes.end();
    return Fail(in_format ? "unsupported_dtype" : "unknown_dtype",
                fmt::format("tensor={} dtype=\"{}\": {}", Printable(key_), Printable(name),
                            in_format ? "a type of the format that is not supported" : "not a type of the format"));
  }

  bool EndEntry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) return BadEntry(fmt::format("no {}", field));
    }
    if (offsets_.size() != 2) return BadEntry(fmt::format("{} data_offsets, want=2", offsets_.size()));
    entry_.spec.name = key_;
    entry_.data_begin = offsets_[0];
    entry_.data_bytes = offsets_[1] - offsets_[0];
    // Names are checked where they begin; what is left is the number of bytes.
    if (const Status status = CheckTensors({entry_.spec}); !status.ok()) {
      return Fail("shape_overflow", Printable(status.message()));
    }
    header_.tensors.push_back(std::move(entry_));
    return true;
  }

  Status status_;
  SafetensorsHeader header_;
  Place place_ = Place::kOutside;
  std::string key_;    // of the root: a tensor's name or __metadata__
  std::string field_;  // of an entry or of the metadata
  std::set<std::string> keys_;
  std::set<std::string> fields_;
  StoredTensor entry_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace

Result<SafetensorsHeader> ReadHeaderJson(std::span<const std::byte> json) {
  // The parser takes a zero byte for the end of its input, and what lies behind it would go unseen.
  if (std::find(json.begin(), json.end(), std::byte{0}) != json.end()) {
    return Status::DataLoss("header_json", "not JSON: a zero byte in the header");
  }
  const char* text = reinterpret_cast<const char*>(json.data());
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + json.size(), &reader)) return reader.status();
  return std::move(reader.header());
}

}  // namespace bascule
