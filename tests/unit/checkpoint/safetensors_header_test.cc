// The header is hostile input: a table of every way to break it, and a mutation run over good ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/safetensors.h"

namespace bascule {
namespace {

std::string FileOf(std::string_view json, std::size_t data_bytes) {
  std::string file;
  for (std::size_t i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return file.append(json).append(data_bytes, 'd');
}

Result<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(file)), static_cast<std::int64_t>(file.size()));
}

// An entry of F32 [2] at [0, 8] with one field replaced.
std::string Entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"w":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

TEST(SafetensorsHeaderTest, TensorsComeSortedByNameWithTheirRanges) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"data_offsets":[0,8],"shape":[],"dtype":"F64"},"none":{"dtype":"I8","shape":[0,4],"data_offsets":[8,8]}}  )";

  const Result<SafetensorsHeader> header = Parse(FileOf(json, 20));

  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->tensors.size(), 3U);
  EXPECT_EQ(header->tensors[0].spec, (TensorSpec{"a", DType::kF64, {}}));
  EXPECT_EQ(header->tensors[1].spec, (TensorSpec{"b", DType::kBf16, {2, 3}}));
  EXPECT_EQ(header->tensors[1].data_begin, 8);
  EXPECT_EQ(header->tensors[1].data_bytes, 12);
  EXPECT_EQ(header->tensors[2].data_bytes, 0);
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(header->data_offset, 8 + static_cast<std::int64_t>(json.size()));
  EXPECT_EQ(header->data_bytes, 20);
}

TEST(SafetensorsHeaderTest, OddButLegalNamesAndTextArePreserved) {
  const Result<SafetensorsHeader> header = Parse(FileOf(
      R"({"a b/../\"c\" \u00e9 日":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"k":"line\nbreak"}})",
      1));

  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(header->tensors[0].spec.name, "a b/../\"c\" é 日");
  EXPECT_EQ(header->metadata.at("k"), "line\nbreak");
}

TEST(SafetensorsHeaderTest, FilesWithoutTensorsAndWithEmptyMetadataAreAccepted) {
  EXPECT_TRUE(Parse(FileOf("{}", 0)).ok());
  EXPECT_TRUE(Parse(FileOf(R"({"__metadata__":{}})", 0)).ok());
  EXPECT_TRUE(Parse(FileOf(R"({"__metadata__":{"a":"b"}})", 0)).ok());
}

struct BadHeader {
  std::string json;
  std::size_t data_bytes;
  const char* reason;
  const char* message;  // a part of it
};

void ExpectRefused(const std::vector<BadHeader>& cases) {
  for (const BadHeader& c : cases) {
    const Status status = Parse(FileOf(c.json, c.data_bytes)).status();

    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << c.json;
    EXPECT_EQ(status.reason(), c.reason) << c.json << ": " << status.message();
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.json << ": " << status.message();
  }
}

// C-109: before offsets are looked at, which are wrong here too.
TEST(SafetensorsHeaderTest, AKeyThatComesTwiceIsRefusedWhereverItIs) {
  const std::string w = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[5,6]})";
  const std::string v = R"("v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  ExpectRefused({
      {"{" + w + "," + w + "}", 1, "duplicate_key", "duplicate key \"w\""},
      {"{" + w + "," + v + "," + w + "}", 1, "duplicate_key", "duplicate key \"w\""},
      {"{" + w + R"(,"\u0077":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "duplicate_key",
       "duplicate key \"w\""},
      {R"({"__metadata__":{},)" + w + R"(,"__metadata__":{}})", 1, "duplicate_key", "duplicate key \"__metadata__\""},
      {R"({"__metadata__":{"a":"b","a":"c"}})", 0, "duplicate_key", "duplicate key \"a\""},
      {R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "duplicate_key",
       "duplicate key \"dtype\""},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"shape":[1]}})", 1, "duplicate_key",
       "duplicate key \"shape\""},
  });
}

// C-110.
TEST(SafetensorsHeaderTest, OffsetsThatDoNotFillTheDataExactlyAreRefused) {
  const auto two = [](std::string_view a, std::string_view b) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
        a, b);
  };
  ExpectRefused({
      {Entry(R"("F32")", "[2]", "[8,0]"), 8, "bad_offsets", "end before they begin"},
      {Entry(R"("F32")", "[2]", "[0,7]"), 8, "size_mismatch", "hold 7 bytes, but F32 of shape [2] takes 8"},
      {Entry(R"("F32")", "[2]", "[1,9]"), 9, "range_gap", "leave a gap behind 0"},
      {two("[0,4]", "[3,7]"), 7, "ranges_overlap", "overlap what ends at 4"},
      {two("[0,4]", "[0,4]"), 4, "ranges_overlap", "overlap what ends at 4"},
      {two("[5,9]", "[0,4]"), 9, "range_gap", "leave a gap behind 4"},
      {two("[4,8]", "[0,4]"), 9, "trailing_bytes", "1 bytes behind the last tensor"},
      {two("[4,8]", "[0,4]"), 16, "trailing_bytes", "8 bytes behind the last tensor"},
      {two("[4,8]", "[0,4]"), 7, "file_truncated", "for the tensors"},
      {Entry(R"("F32")", "[2]", "[9223372036854775800,9223372036854775807]"), 8, "size_mismatch", "hold 7 bytes"},
      {"{}", 3, "trailing_bytes", "3 bytes behind"},
  });
}

TEST(SafetensorsHeaderTest, EntriesOfTheWrongFormAreRefused) {
  const std::string huge = "18446744073709551616";
  ExpectRefused({
      {Entry(R"("F32")", "[4611686018427387904,4]", "[0,8]"), 8, "shape_overflow", "more than 2^63 bytes"},
      {Entry(R"("F32")", "[0,4611686018427387904,4]", "[0,0]"), 0, "shape_overflow", "more than 2^63 bytes"},
      {Entry(R"("F32")", "[-2]", "[0,8]"), 8, "bad_entry", "shape has a negative number"},
      {Entry(R"("F32")", "[2.0]", "[0,8]"), 8, "bad_entry", "shape has a number that is no whole one"},
      {Entry(R"("F32")", R"(["2"])", "[0,8]"), 8, "bad_entry", "shape has a string"},
      {Entry(R"("F32")", "[" + huge + "]", "[0,8]"), 8, "bad_entry", "shape has a number"},
      {Entry(R"("F32")", "[9223372036854775808]", "[0,8]"), 8, "bad_entry", "shape has a number above 2^63"},
      {Entry(R"("F32")", "[null]", "[0,8]"), 8, "bad_entry", "shape has null"},
      {Entry(R"("F32")", "[[2]]", "[0,8]"), 8, "bad_entry", "shape has an array"},
      {Entry(R"("F32")", "2", "[0,8]"), 8, "bad_entry", "shape has a number"},
      {Entry(R"("F32")", "{}", "[0,8]"), 8, "bad_entry", "shape has an object"},
      {Entry(R"("F32")", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "bad_entry", "more than 8 dimensions"},
      {Entry(R"("F32")", "[2]", "[0,8,8]"), 8, "bad_entry", "more than two data_offsets"},
      {Entry(R"("F32")", "[2]", "[0]"), 8, "bad_entry", "1 data_offsets"},
      {Entry(R"("F32")", "[2]", "[-8,0]"), 8, "bad_entry", "data_offsets has a negative number"},
      {Entry(R"("F32")", "[2]", "[0," + huge + "]"), 8, "bad_entry", "data_offsets has a number"},
      {Entry("7", "[2]", "[0,8]"), 8, "bad_entry", "dtype has a number"},
      {Entry(R"("F4")", "[2]", "[0,1]"), 1, "unsupported_dtype", "tensor=w dtype=\"F4\""},
      {Entry(R"("bf16")", "[2]", "[0,4]"), 4, "unknown_dtype", "dtype=\"bf16\""},
      {R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8, "bad_entry", "no dtype"},
      {R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8, "bad_entry", "no shape"},
      {R"({"w":{"dtype":"F32","shape":[2]}})", 8, "bad_entry", "no data_offsets"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"scale":1}})", 8, "bad_entry",
       "unknown field \"scale\""},
      {R"({"w":[]})", 0, "bad_entry", "is an array"},
      {R"({"w":1})", 0, "bad_entry", "is a number"},
      {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "bad_name", "no name"},
      {R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "bad_name", "control character"},
      {R"({")" + std::string(1025, 'x') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "bad_name",
       "1025 bytes"},
  });
}

// C-113.
TEST(SafetensorsHeaderTest, MetadataOtherThanStringsIsRefusedWithThePathOfTheValue) {
  ExpectRefused({
      {R"({"__metadata__":{"a":1}})", 0, "bad_metadata", "__metadata__.a is a number"},
      {R"({"__metadata__":{"a":null}})", 0, "bad_metadata", "__metadata__.a is null"},
      {R"({"__metadata__":{"a":true}})", 0, "bad_metadata", "__metadata__.a is a boolean"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", 0, "bad_metadata", "__metadata__.a is an object"},
      {R"({"__metadata__":{"a":["b"]}})", 0, "bad_metadata", "__metadata__.a is an array"},
      {R"({"__metadata__":"pt"})", 0, "bad_metadata", "__metadata__ is a string"},
      {R"({"__metadata__":[]})", 0, "bad_metadata", "__metadata__ is an array"},
      {R"({"__metadata__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "bad_metadata", "__metadata__.shape"},
  });
}

TEST(SafetensorsHeaderTest, WhatIsNotAJsonObjectIsRefused) {
  ExpectRefused({
      {"[]", 0, "header_json", "does not begin with '{'"},
      {" {}", 0, "header_json", "does not begin with '{'"},
      {"", 0, "header_json", "does not begin with '{'"},
      {"{", 0, "header_json", "not JSON at byte"},
      {"{}x", 0, "header_json", "not JSON at byte 3"},
      {"{}{}", 0, "header_json", "not JSON at byte"},
      {std::string("{}\0", 3), 0, "header_json", "not JSON"},
      {"{'a':1}", 0, "header_json", "not JSON"},
      {"{\"a\xff\":1}", 0, "header_json", "not JSON"},
      {R"({"a":NaN})", 0, "header_json", "not JSON"},
      {"{" + std::string(100000, '['), 0, "header_json", "not JSON"},
      {R"({"w":)" + std::string(100000, '['), 0, "bad_entry", "is an array"},
  });
}

// C-107: each kind of file says what it is.
TEST(SafetensorsHeaderTest, OtherFilesAreNamedAsWhatTheyAre) {
  using namespace std::string_literals;
  const struct {
    std::string file;
    const char* message;
  } cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n", "git-lfs pointer"},
      {"<!DOCTYPE html>\n<html><head><title>Sign in</title>", "HTML"},
      {"\n\n  <html>", "HTML"},
      {"<a>", "HTML"},
      {"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00"s, "zip archive"},
      {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"s, "gzip"},
      {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20"s, "pickle"},
      {"\x80\x02\x00\x00\x00\x00\x00\x00}q"s, "pickle"},
      {"GGUF\x03\x00\x00\x00\x22\x01\x00\x00"s, "GGUF"},
      {"Not Found", "text file"},
      {"Entry not found, try again", "text file"},
  };
  for (const auto& c : cases) {
    const Status status = Parse(c.file).status();

    EXPECT_EQ(status.reason(), "not_safetensors") << c.message;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << status.message();
  }
}

// C-107.
TEST(SafetensorsHeaderTest, AFileCutAnywhereSaysHowManyBytesItHasAndWants) {
  const std::string json = Entry(R"("F32")", "[2]", "[0,8]");
  const std::string file = FileOf(json, 8);
  const std::size_t header_end = 8 + json.size();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{7}, std::size_t{8}, header_end - 1, header_end, file.size() - 1}) {
    const Status status = Parse(file.substr(0, bytes)).status();

    EXPECT_EQ(status.reason(), "file_truncated") << bytes;
    const std::size_t want = bytes < 8 ? 8 : bytes < header_end ? header_end : file.size();
    const std::string numbers = fmt::format("got={} bytes, want={}", bytes, want);
    EXPECT_NE(status.message().find(numbers), std::string::npos) << status.message();
  }
}

TEST(SafetensorsHeaderTest, ALengthAboveTheCapIsRefusedWithoutReadingOn) {
  std::string file(64, '\x07');
  file[0] = '\x7f';

  const Status status = Parse(file).status();

  EXPECT_EQ(status.reason(), "header_length");
  EXPECT_NE(status.message().find("most=100000000"), std::string::npos) << status.message();
}

// C-110.
TEST(SafetensorsHeaderTest, AHundredThousandMutationsOfGoodFilesNeverReadOutside) {
  const std::vector<std::string> good = {
      FileOf(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})",
          20),
      FileOf(Entry(R"("F32")", "[2]", "[0,8]"), 8),
      FileOf(R"({"__metadata__":{}})", 0),
  };
  const std::uint64_t seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed=" << seed);
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int round = 0; round < 100000; ++round) {
    std::string file = good[random() % good.size()];
    for (auto edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % file.size();
      switch (random() % 4) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = "0123456789[]{}\",:-"[random() % 18];
          break;
        case 2:
          file.erase(at, 1 + random() % 3);
          break;
        default:
          file.insert(at, file.substr(random() % file.size(), random() % 12));
          break;
      }
      if (file.empty()) file = "x";
    }
    // In a buffer of its own, so that AddressSanitizer sees a read past its end.
    const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(file.data()),
                                       reinterpret_cast<const std::byte*>(file.data()) + file.size());

    const Result<SafetensorsHeader> header = ParseSafetensorsHeader(bytes, static_cast<std::int64_t>(bytes.size()));

    if (!header.ok()) continue;
    ++accepted;
    for (const StoredTensor& tensor : header->tensors) {
      ASSERT_GE(tensor.data_begin, 0);
      ASSERT_LE(header->data_offset + tensor.data_begin + tensor.data_bytes, static_cast<std::int64_t>(bytes.size()));
      ASSERT_EQ(tensor.data_bytes, tensor.spec.Bytes());
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace bascule
