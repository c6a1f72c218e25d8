#include "bridge/session/failure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace bascule {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(FailureTest, TheListIsSortedAndNamesEachReasonOnceWithAMeaning) {
  const auto failures = SessionFailures();

  for (std::size_t i = 0; i < failures.size(); ++i) {
    EXPECT_FALSE(failures[i].meaning.empty()) << failures[i].reason;
    EXPECT_NE(failures[i].code, StatusCode::kOk) << failures[i].reason;
    if (i > 0) {
      EXPECT_LT(failures[i - 1].reason, failures[i].reason);
    }
  }
}

TEST(FailureTest, EveryReasonThatSessionAndReceiverSourcesUseIsListed) {
  const std::regex made(R"(Status::(\w+)\(\s*"([a-z_]+)\")");
  std::set<std::string> listed;
  for (const FailureReason& failure : SessionFailures()) listed.emplace(failure.reason);

  for (const char* folder : {"bridge/session", "engine_side"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(BASCULE_SOURCE) / folder)) {
      if (entry.path().extension() != ".cc" || entry.path().string().find("/decode/") != std::string::npos) continue;
      const std::string text = ReadFile(entry.path());
      for (auto match = std::sregex_iterator(text.begin(), text.end(), made); match != std::sregex_iterator();
           ++match) {
        EXPECT_TRUE(listed.contains((*match)[2])) << entry.path() << " uses " << (*match)[2];
      }
    }
  }
}

}  // namespace
}  // namespace bascule
