#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked_math.h"
#include "checkpoint/printable_internal.h"
#include "checkpoint/shard_index_internal.h"

namespace bascule {
namespace {

// A name in the index's own directory, that a message may print.
bool IsPlainFileName(std::string_view name) {
  const auto foreign = [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20; };
  return !name.empty() && name != "." && name != ".." && std::none_of(name.begin(), name.end(), foreign);
}

// Reads weight_map and metadata.total_size; skips what else an index may hold. It sees values as the parser meets them,
// so a key that comes twice does not get lost.
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  const Status& status() const { return status_; }
  bool has_weight_map() const { return root_keys_.contains("weight_map"); }
  ShardIndex& index() { return index_; }

  bool start_object(std::size_t) override {
    ++depth_;
    return depth_ <= 2 || root_key_ != "weight_map" || NotAFileName();
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    if (depth_ == 1) return Fail("bad_index", "not an object");
    return root_key_ != "weight_map" || NotAFileName();
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(std::string& key) override {
    if (depth_ == 1) {
      root_key_ = key;
      return root_keys_.insert(key).second || Duplicate(key);
    }
    if (depth_ == 2) key_ = key;
    return !InWeightMap() || !index_.file_of.contains(key) || Duplicate(key);
  }

  bool string(std::string& text) override {
    if (!InWeightMap()) return Scalar();
    if (!IsPlainFileName(text)) {
      return Fail("outside_directory",
                  fmt::format("weight_map: tensor={}: not a file name of this directory", Printable(key_)));
    }
    index_.file_of.emplace(key_, text);
    return true;
  }

  bool number_unsigned(std::uint64_t number) override {
    if (depth_ == 2 && root_key_ == "metadata" && key_ == "total_size") {
      index_.total_bytes = CheckedCast<std::int64_t>(number);
    }
    return Scalar();
  }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(std::int64_t) override { return Scalar(); }
  bool number_float(double, const std::string&) override { return Scalar(); }
  bool binary(binary_t&) override { return Scalar(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail("bad_index", fmt::format("not JSON at byte {}", position));
  }

 private:
  bool InWeightMap() const { return depth_ == 2 && root_key_ == "weight_map"; }

  bool Scalar() {
    if (depth_ == 0) return Fail("bad_index", "not an object");
    return root_key_ != "weight_map" || NotAFileName();
  }
  bool NotAFileName() { return Fail("bad_index", fmt::format("weight_map: tensor={}: no file name", Printable(key_))); }
  bool Duplicate(std::string_view key) {
    return Fail("duplicate_key", fmt::format("duplicate key \"{}\"", Printable(key)));
  }
  bool Fail(std::string_view reason, std::string message) {
    status_ = Status::DataLoss(reason, std::move(message));
    return false;
  }

  Status status_;
  int depth_ = 0;
  std::string root_key_;
  std::string key_;
  std::set<std::string> root_keys_;
  ShardIndex index_;
};

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string_view text) {
  // The parser takes a zero byte for the end of its input, and what lies behind it would go unseen.
  if (text.find('\0') != std::string_view::npos) return Status::DataLoss("bad_index", "not JSON: a zero byte");
  IndexReader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return reader.status();
  if (!reader.has_weight_map()) return Status::DataLoss("bad_index", "no weight_map");
  return std::move(reader.index());
}

}  // namespace bascule
