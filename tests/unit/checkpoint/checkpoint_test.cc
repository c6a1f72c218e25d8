#include "checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file with one tensor of three bytes.
void WriteOne(const TempDirectory& dir, std::string_view file, const std::string& tensor) {
  ASSERT_TRUE(WriteSafetensors(dir.File(std::string(file)), {{tensor, DType::kU8, {3}}}, {BytesOf("abc")}, {}).ok());
}

void WriteIndex(const TempDirectory& dir, std::string_view weight_map) {
  dir.Write("model.safetensors.index.json",
            fmt::format(R"({{"metadata":{{"total_size":6}},"weight_map":{}}})", weight_map));
}

void ExpectBadIndex(const TempDirectory& dir, std::string_view reason, std::string_view message) {
  const Status status = Checkpoint::Open(dir.path()).status();

  EXPECT_EQ(status.reason(), reason) << status.ToString();
  EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("model.safetensors.index.json"), std::string::npos) << status.message();
}

TEST(CheckpointTest, ADirectoryOfIndependentPythonIsReadWithItsConfig) {
  const TempDirectory dir;
  RunPython("fixtures.py", {"dense", dir.File("one")});

  const auto checkpoint = Checkpoint::Open(dir.File("one"));

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_NE((*checkpoint)->config_json().find("LlamaForCausalLM"), std::string::npos);
  const std::vector<TensorSpec>& tensors = (*checkpoint)->tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [](const TensorSpec& t) { return t.name == "model.layers.1.mlp.down_proj.weight"; });
  ASSERT_NE(found, tensors.end());
  EXPECT_EQ(found->shape, (Dims{64, 96}));
  EXPECT_EQ(found->dtype, DType::kBf16);
  EXPECT_TRUE(CheckLayout((*checkpoint)->layout()).ok());
}

TEST(CheckpointTest, ShardsOfIndependentPythonHoldTheSameBytesAsOneFile) {
  const TempDirectory dir;
  RunPython("fixtures.py", {"dense", dir.File("one")});
  RunPython("fixtures.py", {"dense", dir.File("cut"), "--shards", "3"});

  const auto one = Checkpoint::Open(dir.File("one"));
  const auto cut = Checkpoint::Open(dir.File("cut"));

  ASSERT_TRUE(one.ok()) << one.status().ToString();
  ASSERT_TRUE(cut.ok()) << cut.status().ToString();
  ASSERT_FALSE(std::filesystem::exists(dir.File("cut/model.safetensors")));
  ASSERT_EQ((*one)->tensors(), (*cut)->tensors());
  EXPECT_EQ((*one)->layout(), (*cut)->layout());
  for (int t = 0; t < static_cast<int>((*one)->tensors().size()); ++t) {
    EXPECT_EQ(TextOf((*one)->Data(t)), TextOf((*cut)->Data(t))) << (*one)->tensors()[static_cast<std::size_t>(t)].name;
    EXPECT_EQ((*cut)->Base(0, t), (*cut)->Data(t).data());
  }
}

TEST(CheckpointTest, ASingleFileServesWithoutAConfig) {
  const TempDirectory dir;
  WriteOne(dir, "weights.safetensors", "w");

  const auto checkpoint = Checkpoint::Open(dir.File("weights.safetensors"));

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ((*checkpoint)->config_json(), "");
  EXPECT_EQ((*checkpoint)->tensors(), (std::vector<TensorSpec>{{"w", DType::kU8, {3}}}));
  EXPECT_EQ(TextOf((*checkpoint)->Data(0)), "abc");
}

TEST(CheckpointTest, ADirectoryWithOneFileOfAnyNameIsThatFile) {
  const TempDirectory dir;
  WriteOne(dir, "weights.safetensors", "w");
  ASSERT_TRUE(Checkpoint::Open(dir.path()).ok());

  WriteOne(dir, "more.safetensors", "v");

  ExpectBadIndex(dir, "ambiguous_files", "there are 2 .safetensors files: more.safetensors, weights.safetensors");
}

TEST(CheckpointTest, WhatIsNotThereIsNamed) {
  const TempDirectory dir;

  const Status missing = Checkpoint::Open(dir.File("none")).status();
  const Status empty = Checkpoint::Open(dir.path()).status();

  EXPECT_EQ(missing.reason(), "checkpoint_not_found");
  EXPECT_NE(missing.message().find("none"), std::string::npos);
  EXPECT_EQ(empty.reason(), "no_safetensors");
}

// C-115.
TEST(CheckpointTest, FilesThatTheIndexListsAndThatAreMissingAreAllNamed) {
  const TempDirectory dir;
  WriteOne(dir, "m-1.safetensors", "a");
  WriteIndex(dir, R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-3.safetensors","d":"m-2.safetensors"})");

  ExpectBadIndex(dir, "shard_missing",
                 "2 of 3 listed files, with 3 tensors, are missing: m-2.safetensors, m-3.safetensors");
}

// C-116.
TEST(CheckpointTest, TheIndexAndTheFilesAgreeBothWays) {
  const TempDirectory dir;
  WriteOne(dir, "m-1.safetensors", "a");
  WriteOne(dir, "m-2.safetensors", "b");
  WriteIndex(dir, R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  ASSERT_TRUE(Checkpoint::Open(dir.path()).ok());

  WriteIndex(dir, R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"})");
  ExpectBadIndex(dir, "tensor_not_in_shard", "tensor=c is not in file=m-1.safetensors");
  WriteIndex(dir, R"({"a":"m-2.safetensors","b":"m-1.safetensors"})");
  ExpectBadIndex(dir, "tensor_not_in_shard", "tensor=a is not in file=m-2.safetensors but in m-1.safetensors");
  ASSERT_TRUE(WriteSafetensors(dir.File("m-2.safetensors"), {{"b", DType::kU8, {1}}, {"c", DType::kU8, {1}}},
                               {BytesOf("b"), BytesOf("c")}, {})
                  .ok());
  WriteIndex(dir, R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  ExpectBadIndex(dir, "tensor_not_in_index", "tensor=c is in file=m-2.safetensors but not listed");
}

// C-115.
TEST(CheckpointTest, WithoutItsIndexEveryFileIsReadAndNoTensorMayBeInTwo) {
  const TempDirectory dir;
  WriteOne(dir, "a.safetensors", "x");
  WriteOne(dir, "b.safetensors", "y");
  WriteIndex(dir, R"({"x":"a.safetensors","z":"gone.safetensors"})");
  ASSERT_EQ(Checkpoint::Open(dir.path()).status().reason(), "shard_missing");

  const auto checkpoint = Checkpoint::Open(dir.path(), {.ignore_index = true});

  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  ASSERT_EQ((*checkpoint)->tensors().size(), 2U);
  EXPECT_EQ((*checkpoint)->tensors()[0].name, "x");
  EXPECT_EQ((*checkpoint)->tensors()[1].name, "y");
  WriteOne(dir, "c.safetensors", "x");
  EXPECT_EQ(Checkpoint::Open(dir.path(), {.ignore_index = true}).status().reason(), "duplicate_tensor");
}

// C-110.
TEST(CheckpointTest, BytesBehindTheLastTensorArePassedOverWhereThatIsAskedFor) {
  const TempDirectory dir;
  WriteOne(dir, "model.safetensors", "x");
  const std::string path = dir.File("model.safetensors");
  std::ofstream(path, std::ios::binary | std::ios::app) << "more";
  for (const std::string& place : {path, dir.path()}) {
    ASSERT_EQ(Checkpoint::Open(place).status().reason(), "trailing_bytes");

    const auto checkpoint = Checkpoint::Open(place, {.lenient_trailing = true});

    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ(TextOf((*checkpoint)->Data(0)), "abc");
    EXPECT_EQ((*checkpoint)->files()[0]->header().trailing_bytes, 4);
  }
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 5);
  EXPECT_EQ(Checkpoint::Open(path, {.lenient_trailing = true}).status().reason(), "file_truncated");
}

// C-116.
TEST(CheckpointTest, AnIndexThatPointsOutOfItsDirectoryOpensNothing) {
  const TempDirectory dir;
  WriteOne(dir, "outside.safetensors", "a");
  std::filesystem::create_directory(dir.File("inside"));
  dir.Write("inside/model.safetensors.index.json", R"({"weight_map":{"a":"../outside.safetensors"}})");

  const Status status = Checkpoint::Open(dir.File("inside")).status();

  EXPECT_EQ(status.reason(), "outside_directory");
  EXPECT_NE(status.message().find("tensor=a: not a file name of this directory"), std::string::npos)
      << status.message();
}

// C-058. Whoever writes it begins with the index or ends with it, and an earlier save has left files of its own.
TEST(CheckpointTest, ADirectoryThatIsBeingWrittenIsRefusedUntilAllOfItIsThereAndOldFilesAreNoPartOfIt) {
  const char* const index = R"({"a":"n-1.safetensors","b":"n-2.safetensors","c":"n-3.safetensors"})";
  const std::pair<const char*, const char*> files[] = {
      {"n-1.safetensors", "a"}, {"n-2.safetensors", "b"}, {"n-3.safetensors", "c"}};
  for (const bool index_first : {true, false}) {
    const TempDirectory dir;
    WriteOne(dir, "m-1.safetensors", "a");
    WriteOne(dir, "m-2.safetensors", "z");
    if (index_first) WriteIndex(dir, index);
    for (const auto& [file, tensor] : files) {
      EXPECT_EQ(Checkpoint::Open(dir.path()).status().reason(), index_first ? "shard_missing" : "ambiguous_files");
      WriteOne(dir, file, tensor);
    }
    if (!index_first) WriteIndex(dir, index);

    const auto checkpoint = Checkpoint::Open(dir.path());

    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ((*checkpoint)->files().size(), 3U);
    EXPECT_EQ((*checkpoint)->tensors().size(), 3U);
  }
}

// C-058.
TEST(CheckpointTest, AWholeFileBesideAnIndexThatDoesNotListItIsAmbiguous) {
  const TempDirectory dir;
  WriteOne(dir, "m-1.safetensors", "a");
  WriteOne(dir, "model.safetensors", "a");
  WriteIndex(dir, R"({"a":"m-1.safetensors"})");
  ExpectBadIndex(dir, "ambiguous_files", "which of the two is meant?");

  WriteIndex(dir, R"({"a":"model.safetensors"})");

  EXPECT_TRUE(Checkpoint::Open(dir.path()).ok());
}

TEST(CheckpointTest, OneTensorInTwoListedFilesIsRefused) {
  const TempDirectory dir;
  WriteOne(dir, "m-1.safetensors", "a");
  WriteOne(dir, "m-2.safetensors", "b");
  ASSERT_TRUE(WriteSafetensors(dir.File("m-2.safetensors"), {{"a", DType::kU8, {1}}, {"b", DType::kU8, {1}}},
                               {BytesOf("a"), BytesOf("b")}, {})
                  .ok());
  WriteIndex(dir, R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");

  const Status status = Checkpoint::Open(dir.path()).status();

  EXPECT_EQ(status.reason(), "duplicate_tensor");
  EXPECT_NE(status.message().find("tensor=a is in m-1.safetensors and in m-2.safetensors"), std::string::npos)
      << status.message();
}

TEST(CheckpointTest, ADamagedShardIsNamedWithItsRule) {
  const TempDirectory dir;
  WriteOne(dir, "m-1.safetensors", "a");
  dir.Write("m-2.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  WriteIndex(dir, R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");

  const Status status = Checkpoint::Open(dir.path()).status();

  EXPECT_EQ(status.reason(), "not_safetensors");
  EXPECT_NE(status.message().find("m-2.safetensors: a git-lfs pointer"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace bascule
