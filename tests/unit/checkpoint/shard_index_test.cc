#include <gtest/gtest.h>

#include "checkpoint/shard_index_internal.h"

namespace bascule {
namespace {

TEST(ShardIndexTest, FilesByTensorAndTheTotalAreReadAndAllElseIsSkipped) {
  const Result<ShardIndex> index = ParseShardIndex(
      R"({"metadata":{"total_size":42,"nested":{"weight_map":{"x":1}},"list":[1,[2]]},"other":null,
          "weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");

  ASSERT_TRUE(index.ok()) << index.status().ToString();
  EXPECT_EQ(index->file_of, (std::map<std::string, std::string>{{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}}));
  EXPECT_EQ(index->total_bytes, 42);
}

TEST(ShardIndexTest, ATotalThatIsNoWholeNumberCountsAsNone) {
  EXPECT_FALSE(ParseShardIndex(R"({"metadata":{"total_size":4.2},"weight_map":{}})")->total_bytes);
  EXPECT_FALSE(ParseShardIndex(R"({"metadata":{"total_size":18446744073709551615},"weight_map":{}})")->total_bytes);
  EXPECT_FALSE(ParseShardIndex(R"({"weight_map":{}})")->total_bytes);
}

TEST(ShardIndexTest, EverythingElseIsRefusedByItsRule) {
  const struct {
    const char* text;
    const char* message;
    const char* reason = "bad_index";
  } cases[] = {
      {"", "not JSON"},
      {"[]", "not an object"},
      {"7", "not an object"},
      {"{}", "no weight_map"},
      {R"({"weight_map":[]})", "no file name"},
      {R"({"weight_map":"m.safetensors"})", "no file name"},
      {R"({"weight_map":{"a":7}})", "tensor=a"},
      {R"({"weight_map":{"a":{}}})", "tensor=a"},
      {R"({"weight_map":{"a":["m.safetensors"]}})", "tensor=a"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":"../m.safetensors"}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":"sub/m.safetensors"}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":".."}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":"."}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":""}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":"m\u0000.safetensors"}})", "tensor=a", "outside_directory"},
      {R"({"weight_map":{"a":"m","a":"n"}})", "duplicate key \"a\"", "duplicate_key"},
      {R"({"weight_map":{},"weight_map":{}})", "duplicate key \"weight_map\"", "duplicate_key"},
  };
  for (const auto& c : cases) {
    const Status status = ParseShardIndex(c.text).status();

    EXPECT_EQ(status.reason(), c.reason) << c.text;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.text << ": " << status.message();
  }
}

}  // namespace
}  // namespace bascule
