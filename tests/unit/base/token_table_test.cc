#include "base/token_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RoleSet Roles(std::initializer_list<Role> roles) {
  RoleSet set;
  for (const Role role : roles) set.Add(role);
  return set;
}

TEST(TokenTableTest, ATokenHasTheRolesOfItsLineAndNoOther) {
  const TokenTable table =
      TokenTable::Parse("# who looks\nlooks read\n\n  both \t generate , operate \r\nall read,generate,operate,publish")
          .value();

  EXPECT_EQ(table.RolesOf("looks"), Roles({Role::kRead}));
  EXPECT_EQ(table.RolesOf("both"), Roles({Role::kGenerate, Role::kOperate}));
  EXPECT_EQ(table.RolesOf("all"), Roles({Role::kRead, Role::kGenerate, Role::kOperate, Role::kPublish}));
  for (const char* stranger : {"", "look", "looksx", "Looks", "#", "read"}) {
    EXPECT_EQ(table.RolesOf(stranger), std::nullopt) << stranger;
  }
}

TEST(TokenTableTest, ALineThatIsNoneIsNamedByItsNumberAndNeverQuoted) {
  const std::pair<const char*, const char*> cases[] = {
      {"sesame", "line 1: no role"},
      {"a read\nsesame read,", "line 2: no role"},
      {"sesame reed", "line 1: unknown role"},
      {"sesame read publish", "line 1: unknown role"},
      {"sesame read,,publish", "line 1: unknown role"},
      {"\n\nsesame read\nx publish\nsesame publish", "line 5: the same token as in line 3"},
      {"ses\x01me read", "line 1: a token of 6 bytes"},
      {"sesame\xc3\xa9 read", "line 1: a token of 8 bytes"},
      {"# nothing\n\n", "no token in the whole file"},
      {"", "no token in the whole file"},
  };
  for (const auto& [text, why] : cases) {
    const Status status = TokenTable::Parse(text).status();

    EXPECT_EQ(status.reason(), "bad_token_file") << text;
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_THAT(status.message(), Not(HasSubstr("sesame"))) << text;
  }
}

TEST(TokenTableTest, TokensAndTheirNumberAreBounded) {
  const std::string longest(kMaxTokenBytes, 'x');
  std::string many;
  for (std::size_t i = 0; i <= kMaxTokens; ++i) many += fmt::format("token-{} read\n", i);

  EXPECT_TRUE(TokenTable::Parse(longest + " read").ok());
  EXPECT_EQ(TokenTable::Parse(longest + "x read").status().reason(), "bad_token_file");
  EXPECT_EQ(TokenTable::Parse(many).status().reason(), "bad_token_file");
}

// A file with tokens in a directory of /tmp, which everybody may pass.
class PrivateFileTest : public ::testing::Test {
 protected:
  std::string Write(mode_t mode) {
    const std::string path = directory_.Write("tokens", "sesame read\n");
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  void SetDirectoryMode(mode_t mode) { EXPECT_EQ(chmod(directory_.path().c_str(), mode), 0); }

  const TempDirectory directory_;
};

TEST_F(PrivateFileTest, AFileThatOthersCanReadIsRefusedByName) {
  SetDirectoryMode(0755);
  for (const mode_t mode : {0640, 0604, 0660, 0622}) {
    const std::string path = Write(mode);
    const Status status = TokenTable::Read(path).status();

    EXPECT_EQ(status.reason(), "loose_permissions") << fmt::format("{:o}", mode);
    EXPECT_THAT(status.message(), HasSubstr(path));
  }
  EXPECT_TRUE(TokenTable::Read(Write(0600)).ok());
  EXPECT_TRUE(TokenTable::Read(Write(0400)).ok());
}

TEST_F(PrivateFileTest, ADirectoryThatLetsNobodyPassKeepsAFilePrivateWhateverItsMode) {
  SetDirectoryMode(0700);

  EXPECT_TRUE(TokenTable::Read(Write(0644)).ok());
}

TEST_F(PrivateFileTest, WhatIsNoFileIsRefusedAtOnceAndNamed) {
  const std::string fifo = directory_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, directory_.path(), std::string("/dev/null")}) {
    const Status status = TokenTable::Read(path).status();
    EXPECT_EQ(status.reason(), "bad_file") << path;
    EXPECT_THAT(status.message(), HasSubstr(path));
  }
  EXPECT_EQ(TokenTable::Read(directory_.File("absent")).status().reason(), "no_such_file");
}

TEST_F(PrivateFileTest, AnErrorInAFileNamesTheFileAndTheLine) {
  const std::string path = Write(0600);
  std::ofstream(path, std::ios::app) << "other nonsense\n";

  EXPECT_THAT(TokenTable::Read(path).status().message(), ::testing::StartsWith(path + ": line 2"));
}

}  // namespace
}  // namespace bascule
