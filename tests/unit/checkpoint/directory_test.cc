#include "checkpoint/directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "checkpoint/file_internal.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// root/model holds a file; beside the root lies one that nobody outside may hear of.
class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() {
    fs::create_directories(temp_.File("root/model"));
    fs::create_directory(temp_.File("outside"));
    temp_.Write("root/model/inside.txt", "inside");
    temp_.Write("outside/secret.txt", "secret");
    auto root = AllowedRoot::Open(temp_.File("root"));
    EXPECT_TRUE(root.ok()) << root.status().ToString();
    if (root.ok()) roots_.push_back(*root);
  }
  void Link(const std::string& target, const std::string& name) {
    fs::create_symlink(target, temp_.File("root/" + name));
  }
  Result<Directory> Beneath(std::string_view path) { return Directory::Beneath(roots_, path); }

  TempDirectory temp_;
  std::vector<std::shared_ptr<const AllowedRoot>> roots_;
};

TEST_F(DirectoryTest, APathBeneathTheRootIsOpenedHoweverItIsSpelled) {
  Link("model", "newest");
  for (const std::string path : {"model", "./model/", "model/../model", "newest", "newest/."}) {
    const auto directory = Beneath(path);
    ASSERT_TRUE(directory.ok()) << path << " " << directory.status().ToString();
    EXPECT_EQ(*directory->ReadText("inside.txt", 100), "inside") << path;
  }
  EXPECT_EQ(*Beneath(temp_.File("root/model"))->ReadText("inside.txt", 100), "inside");
  EXPECT_THAT(Beneath("model")->Names(), ElementsAre(".", "..", "inside.txt"));
}

// C-121.
TEST_F(DirectoryTest, WhatLiesOutsideIsRefusedAlikeWhetherItIsThereOrNot) {
  Link("../outside", "relative");
  Link(temp_.File("outside"), "absolute");
  Link("/nothing/at/all", "dangling");
  Link("loop", "loop");
  ASSERT_EQ(mkfifo(temp_.File("root/fifo").c_str(), 0600), 0);
  temp_.Write("root/file", "no directory");
  const std::string long_path(1 << 20, 'a');
  const std::string paths[] = {"../outside",
                               "../nothing",
                               "relative",
                               "absolute",
                               "dangling",
                               "loop",
                               "fifo",
                               "file",
                               "nothing",
                               "",
                               "/",
                               "/etc",
                               "/dev/null",
                               temp_.File("outside"),
                               temp_.File("nothing"),
                               temp_.File("rootless"),
                               std::string("model\0", 6),
                               long_path,
                               "https://example.org/model",
                               "model/inside.txt",
                               "../root/model"};
  for (const std::string& path : paths) {
    const Status status = Beneath(path).status();

    EXPECT_EQ(status.reason(), "path_not_allowed") << path.substr(0, 100);
    EXPECT_LT(status.message().size(), 400U);
    EXPECT_THAT(status.message(), Not(HasSubstr("No such")));
  }
}

TEST_F(DirectoryTest, FilesThatLeadOutOrWouldBlockAreNotThere) {
  Link("../../outside/secret.txt", "model/link");
  Link("/nothing", "model/dangling");
  ASSERT_EQ(mkfifo(temp_.File("root/model/fifo").c_str(), 0600), 0);
  fs::create_directory(temp_.File("root/model/folder"));
  const auto directory = Beneath("model");

  for (const std::string name : {"link", "dangling", "fifo", "folder", "nothing", "../../outside/secret.txt"}) {
    EXPECT_FALSE(directory->Has(name)) << name;
    const Status status = directory->Open(name).status();
    EXPECT_EQ(status.reason(), "file_not_found") << name;
    EXPECT_EQ(status.message(), directory->PathOf(name) + ": no such file beneath the allowed root");
  }
}

TEST_F(DirectoryTest, ALinkToAFileBeneathTheRootIsFollowed) {
  fs::create_directory(temp_.File("root/blobs"));
  temp_.Write("root/blobs/0123", "blob");
  Link("../blobs/0123", "model/weights");

  EXPECT_EQ(*Beneath("model")->ReadText("weights", 100), "blob");
}

// C-121.
TEST_F(DirectoryTest, AComponentThatIsExchangedMeanwhileNeverLeadsOut) {
  fs::create_directory(temp_.File("root/real"));
  temp_.Write("root/real/secret.txt", "inside");
  std::jthread swapper([&](std::stop_token stop) {
    const std::string link = temp_.File("root/swapped");
    const std::string other = temp_.File("root/other");
    for (bool out = false; !stop.stop_requested(); out = !out) {
      fs::create_symlink(out ? temp_.File("outside") : "real", other);
      fs::rename(other, link);
    }
  });

  int read = 0;
  for (int i = 0; i < 2000 || read == 0; ++i) {
    const auto directory = Beneath("swapped");
    if (!directory.ok()) continue;
    const auto text = directory->ReadText("secret.txt", 100);
    if (!text.ok()) continue;
    ASSERT_EQ(*text, "inside");
    ++read;
  }
}

TEST_F(DirectoryTest, WithoutARootNothingIsAllowed) {
  EXPECT_EQ(Directory::Beneath({}, "model").status().reason(), "path_not_allowed");
}

TEST_F(DirectoryTest, ARootThatIsNotThereIsRefused) {
  EXPECT_EQ(AllowedRoot::Open(temp_.File("nothing")).status().reason(), "directory_not_found");
}

TEST_F(DirectoryTest, OneThatItsOwnUserNamesIsNotConfined) {
  Link("../outside", "link");

  const Directory directory = Directory::At(temp_.File("root/link"));

  EXPECT_FALSE(directory.is_confined());
  EXPECT_TRUE(directory.Has("secret.txt"));
  EXPECT_EQ(*directory.ReadText("secret.txt", 100), "secret");
  EXPECT_EQ(directory.ReadText("nothing", 100).status().reason(), "file_not_found");
}

}  // namespace
}  // namespace bascule
