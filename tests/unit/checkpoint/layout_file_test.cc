#include "checkpoint/layout_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

Layout TwoRanks() {
  Layout layout{.tensors = {{"w", DType::kBf16, {8, 16}}}, .ranks = std::vector<RankLayout>(2)};
  layout.ranks[0].tensors = {{"top", DType::kBf16, {4, 16}, {}}};
  layout.ranks[0].rows = {{0, {{0, 0}, {4, 16}}, 0, {{0, 0}, {4, 16}}}};
  layout.ranks[1].tensors = {{"rest", DType::kBf16, {6, 16}, {16, 1}}};
  layout.ranks[1].rows = {{0, {{0, 0}, {4, 16}}, 0, {{4, 0}, {4, 16}}}, {0, {{4, 0}, {2, 16}}, kFill, {}}};
  return layout;
}

// `text` with the first `from` replaced.
std::string Changed(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(LayoutFileTest, WhatIsWrittenIsReadBack) {
  const Result<Layout> read = ReadLayout(WriteLayout(TwoRanks()), "a.json");

  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, TwoRanks());
}

TEST(LayoutFileTest, WhatBreaksARuleIsRefusedWithThePath) {
  const std::string text = WriteLayout(TwoRanks());
  const std::string cases[] = {
      "",
      "[]",
      "nonsense",
      text.substr(0, text.size() / 2),
      text + "{}",
      std::string(100'000, '['),
      Changed(text, "bascule-layout", "bascule-other"),
      Changed(text, "\"format_version\":1", "\"format_version\":2"),
      Changed(text, "\"format_version\":1", "\"format_version\":1,\"format_version\":1"),
      Changed(text, "\"BF16\"", "\"BF17\""),
      Changed(text, "[8,16]", "[8,-16]"),
      Changed(text, "[8,16]", "[8,16.5]"),
      Changed(text, "[8,16]", "[9223372036854775807,9223372036854775807]"),
      Changed(text, "[8,16]", "[1,1,1,1,1,1,1,1,1]"),
      Changed(text, "[[0,[[0,0],[4,16]],0,", "[[0,[[0,0],[4,16]],1,"),
      Changed(text, "[[0,[[0,0],[4,16]],0,", "[[7,[[0,0],[4,16]],0,"),
      Changed(text, "[[0,[[0,0],[4,16]],0,", "[[0,[[1,0],[4,16]],0,"),
      Changed(text, "[[0,[[0,0],[4,16]],0,", "[[0,[[0,0],[4,16]],4294967296,"),
      Changed(text, "\"rows\"", "\"lines\""),
  };

  for (const std::string& bad : cases) {
    const Status status = ReadLayout(bad, "dir/a.json").status();
    EXPECT_EQ(status.reason(), "bad_layout_file") << bad.substr(0, 200);
    EXPECT_EQ(status.message().rfind("dir/a.json", 0), 0u) << status.message();
  }
}

TEST(LayoutFileTest, AFileThatIsNotThereIsNamed) {
  const TempDirectory directory;

  const Status status = ReadLayoutFile(directory.path() + "/missing.json").status();

  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("missing.json"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace bascule
