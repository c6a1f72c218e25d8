#include "checkpoint/artifact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bridge/manifest/manifest.h"
#include "bridge/send/source_digest.h"
#include "checkpoint/checkpoint.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/checkpoint/artifact_fixture.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

void Put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::vector<std::string> NamesIn(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::uint16_t> ElementsOf(const WeightSource& source, int rank, int tensor) {
  const LocalTensor& local =
      source.layout().ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(tensor)];
  std::vector<std::uint16_t> elements(static_cast<std::size_t>(local.Bytes()) / 2);
  std::memcpy(elements.data(), source.Base(rank, tensor), static_cast<std::size_t>(local.Bytes()));
  return elements;
}

class ArtifactTest : public ::testing::Test {
 protected:
  std::string Written(const std::string& name = "artifact") {
    const auto manifest = WriteArtifact(RecipeOf(model_), directory_.File(name), {});
    EXPECT_TRUE(manifest.ok()) << manifest.status().ToString();
    return directory_.File(name);
  }

  SmallModel model_;
  TempDirectory directory_;
};

TEST_F(ArtifactTest, EveryRankFileHoldsWhatTheLayoutSays) {
  const auto artifact = Artifact::Open(Directory::At(Written()));

  ASSERT_TRUE(artifact.ok()) << artifact.status().ToString();
  EXPECT_THAT(ElementsOf(**artifact, 1, 0), ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 0, 0, 0, 0));
  EXPECT_THAT(ElementsOf(**artifact, 1, 1), ElementsAre(1000, 1001, 1002, 1003));
  EXPECT_THAT(ElementsOf(**artifact, 0, 2),
              ElementsAre(2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007, 3000, 3001, 3002, 3003));
  EXPECT_THAT(ElementsOf(**artifact, 1, 3),
              ElementsAre(4003, 4004, 4005, 4009, 4010, 4011, 4015, 4016, 4017, 4021, 4022, 4023));
}

TEST_F(ArtifactTest, ItsDigestsAreThoseOfTheSource) {
  const auto artifact = Artifact::Open(Directory::At(Written()));

  ASSERT_TRUE(artifact.ok());
  const auto of_source = DigestSource(model_, model_.layout().tensors, 1);
  EXPECT_EQ((*artifact)->manifest().digests, *of_source);
  EXPECT_EQ(*DigestSource(**artifact, model_.layout().tensors, 1), *of_source);
  EXPECT_EQ((*artifact)->manifest().version_digest, VersionDigestOf(model_.layout().tensors, *of_source));
  EXPECT_TRUE((*artifact)->AlteredPadding()->empty());
}

TEST_F(ArtifactTest, TheManifestComesBackAsItWasWritten) {
  const auto written = WriteArtifact(RecipeOf(model_), directory_.File("artifact"), {});

  const auto read = ReadArtifactManifest(ContentOf(directory_.File("artifact/manifest.json")));

  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, *written);
  EXPECT_EQ(read->config_json, RecipeOf(model_).config_json);
}

TEST_F(ArtifactTest, TheManifestListsTheFamiliesOfItsTensorsAndNoOthers) {
  ArtifactRecipe recipe = RecipeOf(model_);
  recipe.families = {{"down", "fp8 128x128 weight_scale_inv", {"down", "norm"}}};
  const auto written = WriteArtifact(std::move(recipe), directory_.File("artifact"), {});
  ASSERT_TRUE(written.ok()) << written.status().ToString();

  const auto read = ReadArtifactManifest(ContentOf(directory_.File("artifact/manifest.json")));

  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->families, written->families);
  ArtifactManifest other = *written;
  other.families[0].members[1] = "scale";
  const Status status = ReadArtifactManifest(WriteArtifactManifest(other)).status();
  EXPECT_EQ(status.reason(), "bad_artifact");
  EXPECT_THAT(status.message(), HasSubstr("family down"));
}

TEST_F(ArtifactTest, UnshardGivesBackTheSourceAndItsConfig) {
  const auto artifact = Artifact::Open(Directory::At(Written()));

  const Status status = UnshardArtifact(**artifact, directory_.File("back"), {});

  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_THAT(NamesIn(directory_.File("back")), ElementsAre("config.json", "model.safetensors"));
  const auto back = Checkpoint::Open(directory_.File("back"));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ((*back)->config_json(), RecipeOf(model_).config_json);
  ASSERT_EQ((*back)->tensors().size(), model_.layout().tensors.size());
  for (int t = 0; const TensorSpec& tensor : (*back)->tensors()) {
    const auto& original = model_.layout().tensors;
    const auto at = std::find(original.begin(), original.end(), tensor);
    ASSERT_NE(at, original.end()) << tensor.name;
    EXPECT_EQ(ElementsOf(**back, 0, t++), model_.data(static_cast<std::size_t>(at - original.begin())));
  }
}

TEST_F(ArtifactTest, TensorsLongerThanABlockKeepTheirBytes) {
  class LargeModel final : public WeightSource {
   public:
    LargeModel() : layout_(PlainLayout({{"w", DType::kBf16, {1100, 1030}}})), data_(1100 * 1030) {
      for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::uint16_t>(i * 2654435761U >> 7);
    }
    const Layout& layout() const override { return layout_; }
    const std::byte* Base(int, int) const override { return reinterpret_cast<const std::byte*>(data_.data()); }
    Layout layout_;
    std::vector<std::uint16_t> data_;
  } model;
  ArtifactRecipe recipe = RecipeOf(model_);
  recipe.source = &model;
  recipe.stored = model.layout();
  recipe.layout = {model.layout().tensors, {}};
  for (std::int64_t r = 0; r < 2; ++r) {
    recipe.layout.ranks.push_back(
        {{{"w", DType::kBf16, {1100, 515}, {}}}, {{0, {{0, 0}, {1100, 515}}, 0, {{0, 515 * r}, {1100, 515}}}}});
  }
  ASSERT_TRUE(WriteArtifact(std::move(recipe), directory_.File("large"), {}).ok());
  const auto artifact = Artifact::Open(Directory::At(directory_.File("large")));

  ASSERT_TRUE(UnshardArtifact(**artifact, directory_.File("back"), {}).ok());

  EXPECT_EQ(ElementsOf(**artifact, 1, 0)[515 * 7 + 3], model.data_[1030 * 7 + 515 + 3]);
  EXPECT_EQ(ElementsOf(**Checkpoint::Open(directory_.File("back")), 0, 0), model.data_);
}

TEST_F(ArtifactTest, ConversionIsTheSendersAndTheWayBackHasTheNewType) {
  ArtifactRecipe recipe = RecipeOf(model_);
  for (TensorSpec& tensor : recipe.layout.tensors) tensor.dtype = DType::kF32;
  for (RankLayout& rank : recipe.layout.ranks) {
    for (LocalTensor& tensor : rank.tensors) tensor.dtype = DType::kF32;
  }

  ASSERT_TRUE(WriteArtifact(std::move(recipe), directory_.File("wide"), {}).ok());

  const auto artifact = Artifact::Open(Directory::At(directory_.File("wide")));
  ASSERT_TRUE(artifact.ok()) << artifact.status().ToString();
  ASSERT_TRUE(UnshardArtifact(**artifact, directory_.File("back"), {}).ok());
  EXPECT_EQ((*Checkpoint::Open(directory_.File("back")))->tensors()[0].dtype, DType::kF32);
}

// C-058.
TEST_F(ArtifactTest, ADirectoryThatIsThereIsLeftAlone) {
  directory_.Write("file", "x");
  fs::create_directory(directory_.File("full"));
  directory_.Write("full/other", "y");
  const auto before = NamesIn(directory_.path());

  for (const std::string name : {"file", "full"}) {
    EXPECT_EQ(WriteArtifact(RecipeOf(model_), directory_.File(name), {}).status().reason(), "output_exists");
  }

  EXPECT_EQ(NamesIn(directory_.path()), before);
  EXPECT_EQ(ContentOf(directory_.File("full/other")), "y");
}

TEST_F(ArtifactTest, AnEmptyDirectoryIsTakenOver) {
  fs::create_directory(directory_.File("empty"));

  EXPECT_TRUE(WriteArtifact(RecipeOf(model_), directory_.File("empty") + "/", {}).ok());

  EXPECT_THAT(NamesIn(directory_.File("empty")),
              ElementsAre("manifest.json", "rank-0.safetensors", "rank-1.safetensors"));
}

TEST_F(ArtifactTest, AFailureLeavesNothing) {
  ArtifactRecipe recipe = RecipeOf(model_);
  recipe.layout.tensors.push_back({"missing", DType::kBf16, {1}});
  std::stop_source stopped;
  stopped.request_stop();

  EXPECT_EQ(WriteArtifact(std::move(recipe), directory_.File("a"), {}).status().reason(), "tensor_missing");
  EXPECT_EQ(WriteArtifact(RecipeOf(model_), directory_.File("b"), {.stop = stopped.get_token()}).status().reason(),
            "cancelled");
  EXPECT_EQ(WriteArtifact(RecipeOf(model_), directory_.File("none/c"), {}).status(),
            Status::NotFound("directory_not_found", directory_.File("none") + ": No such file or directory"));

  EXPECT_THAT(NamesIn(directory_.path()), ElementsAre());
}

// C-058.
TEST_F(ArtifactTest, WhatAKilledWriterLeftIsRemovedByTheNextOneToTheSameName) {
  fs::create_directory(directory_.File(".artifact.1-0.partial"));
  directory_.Write(".artifact.1-0.partial/rank-0.safetensors", "half");
  fs::create_directory(directory_.File(".other.1-0.partial"));

  Written();

  EXPECT_THAT(NamesIn(directory_.path()), ElementsAre(".other.1-0.partial", "artifact"));
}

// C-058.
TEST_F(ArtifactTest, RankFilesWithoutAManifestAreNoArtifactAndNoCheckpoint) {
  const std::string path = Written();
  fs::remove(path + "/manifest.json");

  EXPECT_TRUE(Artifact::IsArtifact(Directory::At(path)));
  EXPECT_EQ(Artifact::Open(Directory::At(path)).status().reason(), "manifest_not_found");
}

TEST_F(ArtifactTest, ARankFileThatIsNotTheManifestsIsNamed) {
  const std::string path = Written();
  const std::string file = path + "/rank-1.safetensors";
  const std::string good = ContentOf(file);
  std::string renamed = good;
  renamed.replace(renamed.find("\"qk\""), 4, "\"qx\"");
  for (const std::string& content : {std::string(), good.substr(0, good.size() - 1), good + '\0', renamed}) {
    Put(file, content);

    const Status status = Artifact::Open(Directory::At(path)).status();

    EXPECT_EQ(status.reason(), "artifact_altered");
    EXPECT_THAT(status.message(), HasSubstr("rank-1.safetensors"));
  }
  fs::remove(file);
  EXPECT_EQ(Artifact::Open(Directory::At(path)).status().reason(), "artifact_altered");
}

TEST_F(ArtifactTest, AnyChangedByteOfTheManifestIsNoticed) {
  const std::string file = Written() + "/manifest.json";
  const std::string good = ContentOf(file);
  for (std::size_t i = 0; i < good.size() - 1; i += 7) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);

    EXPECT_EQ(ReadArtifactManifest(bad).status().reason(), "artifact_altered") << i;
  }
  for (std::size_t size = 0; size < good.size() - 1; size += 101) {
    EXPECT_EQ(ReadArtifactManifest(good.substr(0, size)).status().reason(), "artifact_altered");
  }
}

// With a checksum of its own: what someone else's writer may have got wrong.
std::string Resealed(std::string text) {
  text.resize(text.rfind(",\"sha256\":\""));
  return text + ",\"sha256\":\"" + Sha256Of(text).ToHex() + "\"}\n";
}

TEST_F(ArtifactTest, AManifestThatContradictsItselfIsRefused) {
  const std::string good = ContentOf(Written() + "/manifest.json");
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"bascule-artifact", "other"},
      {"\"format_version\":2", "\"format_version\":1"},
      {"\"format_version\":2", "\"format_version\":-1"},
      {"\"tensor\":2", "\"tensor\":3"},
      {"rank-1.safetensors", "../rank-1.safetensors"},
      {"\"dtype\":\"BF16\",\"shape\":[5,4]", "\"dtype\":\"BF17\",\"shape\":[5,4]"},
      {"\"shape\":[5,4]", "\"shape\":[6,4]"},
      {"\"shape\":[5,4]", "\"shape\":[9223372036854775807,4]"},
      {"\"shape\":[5,4]", "\"shape\":[5,-4]"},
      {"\"shape\":[5,4]", "\"shape\":[1,1,1,1,1,1,1,1,1]"},
      {"\"shape\":[5,4]", "\"shape\":\"5,4\""},
      {"\"rows\":[[0,", "\"rows\":[[99,"},
      {"\"rows\":[[0,", "\"rows\":[[4294967296,"},
      {"\"rows\":", "\"lines\":"},
      {"\"ranks\":", "\"files\":"},
      {"\"config\":", "\"configuration\":"}};
  for (const auto& [from, to] : changes) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << from;
    bad.replace(bad.find(from), from.size(), to);

    EXPECT_EQ(ReadArtifactManifest(Resealed(bad)).status().reason(), "bad_artifact") << to;
  }
  EXPECT_EQ(ReadArtifactManifest(Resealed("[1" + good)).status().reason(), "bad_artifact");
}

TEST_F(ArtifactTest, AlteredBytesAreFoundOnTheWayBackAndNothingIsLeft) {
  const std::string path = Written();
  const std::string file = path + "/rank-0.safetensors";
  std::string content = ContentOf(file);
  content.back() = static_cast<char>(content.back() ^ 1);
  Put(file, content);
  const auto artifact = Artifact::Open(Directory::At(path));
  ASSERT_TRUE(artifact.ok());

  const Status status = UnshardArtifact(**artifact, directory_.File("back"), {});

  EXPECT_EQ(status.reason(), "artifact_altered");
  EXPECT_THAT(status.message(), HasSubstr("down"));
  EXPECT_THAT(NamesIn(directory_.path()), ElementsAre("artifact"));
}

TEST_F(ArtifactTest, PaddingThatIsNotZeroIsFound) {
  const std::string path = Written();
  const std::string file = path + "/rank-1.safetensors";
  std::string content = ContentOf(file);
  const auto file_offset = static_cast<std::size_t>((*SafetensorsFile::Open(file))->header().data_offset);
  content[file_offset + 2 * 8] = 1;  // row 2 of the embedding, which is first in the file
  Put(file, content);

  const auto altered = (*Artifact::Open(Directory::At(path)))->AlteredPadding();

  ASSERT_TRUE(altered.ok()) << altered.status().ToString();
  ASSERT_EQ(altered->size(), 1U);
  EXPECT_EQ(altered->front().tensor, "embed");
  EXPECT_THAT(altered->front().why, HasSubstr("rank-1.safetensors"));
}

}  // namespace
}  // namespace bascule
