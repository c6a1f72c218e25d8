#include "tools/artifact_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stop_token>

#include "tests/support/temp_directory.h"
#include "tests/unit/checkpoint/artifact_fixture.h"

namespace bascule {
namespace {

using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class ArtifactCheckTest : public ::testing::Test {
 protected:
  ArtifactCheckTest() {
    const auto manifest = WriteArtifact(RecipeOf(model_), path_, {});
    EXPECT_TRUE(manifest.ok()) << manifest.status().ToString();
  }
  std::unique_ptr<Artifact> Open(const ReadOptions& read) const {
    auto artifact = Artifact::Open(Directory::At(path_), read);
    EXPECT_TRUE(artifact.ok()) << artifact.status().ToString();
    return *std::move(artifact);
  }
  // The byte at `from_end` of a rank file becomes another.
  void Alter(int rank, int from_end) const {
    std::fstream file(FileOf(rank), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-from_end, std::ios::end);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-from_end, std::ios::end);
    file.put(byte);
  }
  std::string FileOf(int rank) const { return path_ + "/rank-" + std::to_string(rank) + ".safetensors"; }

  SmallModel model_;
  TempDirectory directory_;
  const std::string path_ = directory_.File("artifact");
};

constexpr ReadStrategy kStrategies[] = {ReadStrategy::kMmap, ReadStrategy::kRead};

TEST_F(ArtifactCheckTest, AnArtifactAsItWasWrittenHasTheDigestsOfItsManifest) {
  for (const ReadStrategy strategy : kStrategies) {
    const auto artifact = Open({.strategy = strategy});

    const auto check = CheckArtifact(*artifact);

    ASSERT_TRUE(check.ok()) << check.status().ToString();
    EXPECT_TRUE(check->ToStatus(path_).ok());
    EXPECT_EQ(check->digests, artifact->manifest().digests);
  }
}

TEST_F(ArtifactCheckTest, AnAlteredByteNamesTensorAndFile) {
  Alter(/*rank=*/1, /*from_end=*/1);  // of the tensor that is last in the file

  const auto check = CheckArtifact(*Open({}));

  ASSERT_TRUE(check.ok()) << check.status().ToString();
  EXPECT_THAT(check->altered, UnorderedElementsAre(Field(&Artifact::Altered::why, HasSubstr("rank-1.safetensors"))));
  EXPECT_EQ(check->ToStatus(path_).reason(), "artifact_altered");
}

TEST_F(ArtifactCheckTest, AnArtifactThatIsCutWhileItIsOpenIsAnErrorWithEveryStrategy) {
  for (const ReadStrategy strategy : kStrategies) {
    const auto artifact = Open({.strategy = strategy});
    const auto bytes = std::filesystem::file_size(FileOf(1));
    const std::string whole = directory_.File("whole");
    std::filesystem::copy_file(FileOf(1), whole, std::filesystem::copy_options::overwrite_existing);
    ASSERT_EQ(truncate(FileOf(1).c_str(), 0), 0);

    EXPECT_EQ(CheckArtifact(*artifact).status().reason(), "file_truncated") << ReadStrategyName(strategy);
    EXPECT_EQ(artifact->AlteredPadding().status().reason(), "file_truncated") << ReadStrategyName(strategy);

    std::filesystem::rename(whole, FileOf(1));
    ASSERT_EQ(std::filesystem::file_size(FileOf(1)), bytes);
  }
}

TEST_F(ArtifactCheckTest, AStopEndsTheCheck) {
  std::stop_source stop;
  const auto artifact = Open({.stop = stop.get_token()});

  stop.request_stop();

  EXPECT_EQ(CheckArtifact(*artifact).status().reason(), "cancelled");
  EXPECT_EQ(Artifact::Open(Directory::At(path_), {.stop = stop.get_token()}).status().reason(), "cancelled");
}

}  // namespace
}  // namespace bascule
