#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/safetensors.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(SafetensorsFileTest, WhatIsWrittenIsReadBackAlignedToItsElements) {
  const TempDirectory dir;
  const std::string path = dir.File("m.safetensors");
  const std::vector<TensorSpec> tensors = {{"odd", DType::kU8, {3}},
                                           {"wide", DType::kF64, {2}},
                                           {"none", DType::kF32, {0, 5}},
                                           {"quote \" back \\ é", DType::kBf16, {}}};
  const std::vector<std::span<const std::byte>> data = {BytesOf("abc"), BytesOf("0123456789abcdef"), {}, BytesOf("zz")};

  const Status written = WriteSafetensors(path, tensors, data, {{"format", "pt"}, {"note", "a\"b\n"}});

  ASSERT_TRUE(written.ok()) << written.ToString();
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->header().data_offset % 64, 0);
  EXPECT_EQ((*file)->header().metadata.at("note"), "a\"b\n");
  ASSERT_EQ((*file)->header().tensors.size(), tensors.size());
  for (const StoredTensor& stored : (*file)->header().tensors) {
    const auto i = static_cast<std::size_t>(std::find(tensors.begin(), tensors.end(), stored.spec) - tensors.begin());
    ASSERT_LT(i, tensors.size()) << stored.spec.name;
    EXPECT_EQ(TextOf((*file)->Data(stored)), TextOf(data[i]));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*file)->Data(stored).data()) % ItemBytes(stored.spec.dtype), 0U);
  }
}

// C-113.
TEST(SafetensorsFileTest, AFileOfMetadataAloneRoundTrips) {
  const TempDirectory dir;
  ASSERT_TRUE(WriteSafetensors(dir.File("m.safetensors"), {}, {}, {{"a", "b"}}).ok());

  const auto file = SafetensorsFile::Open(dir.File("m.safetensors"));

  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE((*file)->header().tensors.empty());
  EXPECT_EQ((*file)->header().metadata, (std::map<std::string, std::string>{{"a", "b"}}));
}

// C-113.
TEST(SafetensorsFileTest, TheWriterRefusesWhatTheReaderWould) {
  const TempDirectory dir;
  const std::string path = dir.File("m.safetensors");
  const struct {
    std::vector<TensorSpec> tensors;
    std::vector<std::span<const std::byte>> data;
    const char* message;
  } cases[] = {
      {{{"__metadata__", DType::kU8, {1}}}, {BytesOf("a")}, "reserved"},
      {{{"w", DType::kU8, {1}}, {"w", DType::kU8, {1}}}, {BytesOf("a"), BytesOf("b")}, "two tensors are named w"},
      {{{"w", DType::kU8, {2}}}, {BytesOf("a")}, "got=1 bytes, want=2"},
      {{{"w", DType::kU8, {2}}}, {}, "1 tensors, 0 data"},
      {{{"", DType::kU8, {1}}}, {BytesOf("a")}, "no name"},
      {{{"\xff", DType::kU8, {1}}}, {BytesOf("a")}, "not JSON"},
  };
  for (const auto& c : cases) {
    const Status status = WriteSafetensors(path, c.tensors, c.data, {});

    EXPECT_EQ(status.reason(), "bad_tensors") << c.message;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << status.message();
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// C-118.
TEST(SafetensorsFileTest, AnOpenFileKeepsItsBytesWhenAnotherTakesItsPlace) {
  const TempDirectory dir;
  const std::string path = dir.File("m.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, {{"w", DType::kU8, {3}}}, {BytesOf("old")}, {}).ok());
  const auto old_file = SafetensorsFile::Open(path);
  ASSERT_TRUE(old_file.ok());

  ASSERT_TRUE(WriteSafetensors(path, {{"w", DType::kU8, {3}}}, {BytesOf("new")}, {}).ok());

  EXPECT_EQ(TextOf((*old_file)->Data((*old_file)->header().tensors[0])), "old");
  const auto new_file = SafetensorsFile::Open(path);
  ASSERT_TRUE(new_file.ok());
  EXPECT_EQ(TextOf((*new_file)->Data((*new_file)->header().tensors[0])), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "a temporary file is left";
}

TEST(SafetensorsFileTest, AWriteThatFailsLeavesNothingBehind) {
  const TempDirectory dir;
  std::filesystem::create_directory(dir.File("taken"));

  const Status no_directory = WriteSafetensors(dir.File("none/m.safetensors"), {}, {}, {});
  const Status onto_directory = WriteSafetensors(dir.File("taken"), {}, {}, {});

  EXPECT_EQ(no_directory.reason(), "directory_not_found");
  EXPECT_NE(no_directory.message().find("none/m.safetensors"), std::string::npos);
  EXPECT_EQ(onto_directory.reason(), "file_not_writable");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SafetensorsFileTest, EveryErrorNamesTheFile) {
  const TempDirectory dir;
  const std::string fifo = dir.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const struct {
    std::string path;
    const char* reason;
  } cases[] = {
      {dir.File("missing"), "file_not_found"},
      {fifo, "file_not_readable"},
      {dir.path(), "file_not_readable"},
      {dir.Write("empty", ""), "file_truncated"},
      {dir.Write("pointer", "version https://git-lfs.github.com/spec/v1\n"), "not_safetensors"},
      {dir.Write("broken", std::string("\x02\0\0\0\0\0\0\0{]", 10)), "header_json"},
  };
  for (const auto& c : cases) {
    const Status status = SafetensorsFile::Open(c.path).status();

    EXPECT_EQ(status.reason(), c.reason) << c.path;
    EXPECT_NE(status.message().find(c.path), std::string::npos) << status.message();
  }
}

// C-112: third-party files begin their data anywhere.
TEST(SafetensorsFileTest, DataAtAnyOffsetIsReadExactly) {
  const TempDirectory dir;
  for (std::size_t padding = 0; padding < 8; ++padding) {
    std::string json = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    json.append(padding, ' ');
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(json.size());

    const auto file = SafetensorsFile::Open(dir.Write(fmt::format("m{}", padding), bytes + json + "01234567"));

    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(TextOf((*file)->Data((*file)->header().tensors[0])), "01234567");
  }
}

}  // namespace
}  // namespace bascule
