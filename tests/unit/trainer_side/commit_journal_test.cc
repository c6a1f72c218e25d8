#include "trainer_side/commit_journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/sha256.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

class CommitJournalTest : public testing::Test {
 protected:
  CommitJournalTest() {
    version_.digest.bytes[0] = std::byte{0xab};
    version_.digest.bytes[31] = std::byte{0x01};
  }

  TempDirectory directory_;
  const std::string path_ = directory_.File("journal");
  WeightVersion version_{.run = "a run, 100% new\n", .number = 18'446'744'073'709'551'615u, .digest = {}};
  const std::vector<std::string> replicas_ = {"127.0.0.1:7000", "unix:/a path/x", "[::1]:7001"};
};

TEST_F(CommitJournalTest, WhatWasDecidedIsThereForWhoeverOpensItNext) {
  {
    const auto journal = OpenCommitJournal(path_);
    ASSERT_TRUE(journal.ok());
    EXPECT_FALSE((*journal)->last());
    ASSERT_TRUE((*journal)->Decide(version_, replicas_).ok());
    ASSERT_TRUE((*journal)->NoteLive(replicas_[1]).ok());
  }

  const auto journal = OpenCommitJournal(path_);

  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  const auto last = (*journal)->last();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->version, version_);
  EXPECT_EQ(last->replicas, replicas_);
  EXPECT_EQ(last->live, std::set<std::string>{replicas_[1]});
  EXPECT_FALSE(last->finished());
}

TEST_F(CommitJournalTest, ANewDecisionTakesThePlaceOfTheLast) {
  const auto journal = OpenCommitJournal(path_);
  ASSERT_TRUE((*journal)->Decide(version_, replicas_).ok());
  ASSERT_TRUE((*journal)->NoteLive(replicas_[0]).ok());

  ASSERT_TRUE((*journal)->Decide({.run = "r", .number = 2, .digest = {}}, {"x"}).ok());

  EXPECT_EQ((*journal)->last()->version.number, 2u);
  EXPECT_TRUE((*journal)->last()->live.empty());
}

TEST_F(CommitJournalTest, WhatWasTakenBackIsFinishedUntilItIsLiveAgain) {
  {
    const auto journal = OpenCommitJournal(path_);
    ASSERT_TRUE((*journal)->NoteTakenBack(true).ok()) << "nothing was decided";
    ASSERT_TRUE((*journal)->Decide(version_, replicas_).ok());
    ASSERT_TRUE((*journal)->NoteTakenBack(true).ok());
  }
  const auto journal = OpenCommitJournal(path_);
  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  EXPECT_TRUE((*journal)->last()->taken_back);
  EXPECT_TRUE((*journal)->last()->finished());
  EXPECT_EQ((*journal)->last()->replicas, replicas_);

  ASSERT_TRUE((*journal)->NoteTakenBack(false).ok());

  EXPECT_FALSE((*journal)->last()->finished());
}

TEST_F(CommitJournalTest, TwoPublishersDoNotShareOne) {
  const auto first = OpenCommitJournal(path_);
  ASSERT_TRUE(first.ok());

  EXPECT_EQ(OpenCommitJournal(path_).status().reason(), "journal_in_use");
}

TEST_F(CommitJournalTest, DamageIsFoundWhereverItIs) {
  { ASSERT_TRUE((*OpenCommitJournal(path_))->Decide(version_, replicas_).ok()); }
  const std::string whole = ReadFile(path_);

  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    WriteFile(path_, damaged);
    ASSERT_EQ(OpenCommitJournal(path_).status().reason(), "bad_journal") << at;
    WriteFile(path_, whole.substr(0, at));
    ASSERT_EQ(OpenCommitJournal(path_).status().reason(), "bad_journal") << at;
  }
}

TEST_F(CommitJournalTest, ALineThatHasNoPlaceIsNamedEvenUnderTheRightHash) {
  const std::string head = "bascule-journal 1\n";
  const std::string commit = "commit 7 " + version_.digest.ToHex() + " a%20run\n";
  const auto opened = [this](const std::string& text) {
    WriteFile(path_, text + "end " + Sha256Of(text).ToHex() + "\n");
    return OpenCommitJournal(path_).status();
  };

  EXPECT_TRUE(opened(head + commit + "live a\nreplica b\n").ok());
  EXPECT_TRUE(opened(head + commit + "taken-back\nlive a\n").ok());
  const std::pair<std::string, std::string> bad[] = {
      {"", "line 1"},
      {head, "line 2"},
      {head + "replica a\n", "line 2"},
      {head + commit + commit, "line 3"},
      {head + commit + "live a\nreplica a\n", "line 4"},
      {head + commit + "replica a\nlive a\n", "line 4"},
      {head + commit + "replica %4\n", "line 3"},
      {head + "commit 7 " + version_.digest.ToHex() + " run more\n", "line 2"},
      {head + "commit 7 ab run\n", "line 2"},
      {head + commit + "live a\ntaken-back\n", "line 4"},
      {head + commit + "taken-back\ntaken-back\n", "line 4"},
      {head + commit + "taken-back \n", "line 3"},
      {head + "commit -7 " + version_.digest.ToHex() + " run\n", "line 2"},
  };
  for (const auto& [text, line] : bad) {
    const Status status = opened(text);
    EXPECT_EQ(status.reason(), "bad_journal") << text;
    EXPECT_NE(status.ToString().find(line + " "), std::string::npos) << text << status.ToString();
  }
}

TEST_F(CommitJournalTest, WhatCannotBeWrittenDoesNotCountAndTheLastDecisionStands) {
  const auto journal = OpenCommitJournal(path_);
  ASSERT_TRUE((*journal)->Decide(version_, replicas_).ok());
  std::filesystem::create_directory(path_ + ".new");  // where the draft would be written

  const Status status = (*journal)->Decide({.run = "r", .number = 2, .digest = {}}, {"x"});

  EXPECT_EQ(status.reason(), "journal_failed");
  EXPECT_EQ((*journal)->last()->version, version_);
}

TEST_F(CommitJournalTest, ADirectoryThatIsNotThereIsAnError) {
  EXPECT_EQ(OpenCommitJournal(directory_.File("no/journal")).status().reason(), "journal_failed");
}

}  // namespace
}  // namespace bascule
