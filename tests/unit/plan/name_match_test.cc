#include "bridge/plan/name_match_internal.h"
#include "bridge/plan/nearest_name.h"
#include "bridge/plan/planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace bascule {
namespace {

std::vector<TensorSpec> SpecsOf(const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::kBf16, {2}});
  return specs;
}

// The whole table, by definition.
int SlowEditDistance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  std::vector<std::vector<int>> table(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = static_cast<int>(i + j);
      } else {
        table[i][j] =
            std::min({table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), table[i - 1][j] + 1, table[i][j - 1] + 1});
      }
    }
  }
  return table[a.size()][b.size()];
}

TEST(EditDistanceTest, EqualsTheFullTableUpToItsLimit) {
  for (std::uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const auto text = [&] {
      std::string letters(random() % 12, 'a');
      for (char& c : letters) c = static_cast<char>('a' + random() % 3);
      return letters;
    };
    const std::string a = text();
    const std::string b = text();
    const int limit = static_cast<int>(random() % 8);

    ASSERT_EQ(EditDistance(a, b, limit), std::min(SlowEditDistance(a, b), limit + 1)) << a << " " << b << " " << limit;
  }
}

TEST(NearestNameTest, FindsAMisspellingAndStaysSilentForStrangers) {
  const std::vector<std::string_view> names = {"model.layers.0.mlp.up_proj.weight", "model.norm.weight"};

  EXPECT_EQ(NearestName("model.nrom.weight", names), "model.norm.weight");
  EXPECT_EQ(NearestName("layers.0.mlp.up_proj.weight", names), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(NearestName("vision.tower", names), "");
}

TEST(NameMatchTest, APatternForEveryExpertCostsOneTestForEachNameThatItMatches) {
  std::vector<std::string> names = {"norm"};
  std::vector<std::string> ignore;
  for (int expert = 0; expert < 128; ++expert) {
    for (const std::string_view part : {"gate_proj", "up_proj", "down_proj"}) {
      ignore.push_back(fmt::format("*.experts.{}.{}.*", expert, part));
      for (int layer = 0; layer < 54; ++layer) {
        names.push_back(fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, part));
      }
    }
  }

  const auto match = MatchNames(SpecsOf(names), SpecsOf({"norm"}), ignore);

  ASSERT_TRUE(match.ok()) << match.status().ToString();
  EXPECT_EQ(match->names.ignored.size(), 20736U);
  EXPECT_EQ(match->pattern_tests, 20736);  // of eight million pairs
}

TEST(NameMatchTest, WhatIsIgnoredIsWhatAnyPatternMatches) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const auto text = [&](std::string_view letters) {
      std::string made(random() % 6, ' ');
      for (char& c : made) c = letters[random() % letters.size()];
      return made;
    };
    std::set<std::string> names = {"known"};
    for (int i = 0; i < 12; ++i) names.insert(text("ab."));
    std::vector<std::string> ignore;
    for (int i = 0; i < 4; ++i) ignore.push_back(text("ab.**"));
    std::set<std::string> expected;
    for (const std::string& name : names) {
      const bool matches = std::ranges::any_of(ignore, [&](const auto& one) { return MatchesPattern(one, name); });
      if (name != "known" && matches) expected.insert(name);
    }

    const NameSets sets = CompareNames(SpecsOf({names.begin(), names.end()}), SpecsOf({"known"}), ignore);

    ASSERT_EQ(std::set<std::string>(sets.ignored.begin(), sets.ignored.end()), expected);
  }
}

TEST(PatternTest, AStarMatchesAnyTextAndAllElseItself) {
  const struct {
    const char* pattern;
    const char* name;
    bool matches;
  } cases[] = {
      {"a", "a", true},
      {"a", "ab", false},
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "abc", true},
      {"a*", "abc", true},
      {"*c", "abc", true},
      {"a*c", "abcbc", true},
      {"a*b", "abc", false},
      {"a*b*c", "axxbyyc", true},
      {"a*b*c", "acb", false},
      {"vision.*", "vision.x", true},
      {"vision.*", "visionx", false},
      {"**", "x", true},
      {"*.inv_freq", "l.0.inv_freq", true},
      {"a.b", "axb", false},
      {"[a]", "a", false},
  };
  for (const auto& c : cases) EXPECT_EQ(MatchesPattern(c.pattern, c.name), c.matches) << c.pattern << " on " << c.name;
}

TEST(NameMatchTest, EveryNameIsInExactlyOneSet) {
  const Result<NameMatch> match =
      MatchNames(SpecsOf({"vision.b", "w", "v", "vision.a"}), SpecsOf({"v", "w"}), {"vision.*"});

  ASSERT_TRUE(match.ok()) << match.status().ToString();
  EXPECT_EQ(match->names.loaded, (std::vector<std::string>{"v", "w"}));
  EXPECT_EQ(match->names.ignored, (std::vector<std::string>{"vision.b", "vision.a"}));
  EXPECT_TRUE(match->names.expected.empty());
  EXPECT_TRUE(match->names.unexpected.empty());
  EXPECT_EQ(match->engine_of_sender, (std::vector<std::int32_t>{-1, 1, 0, -1}));
  EXPECT_EQ(match->sender_of_engine, (std::vector<std::int32_t>{2, 1}));
}

// C-016.
TEST(NameMatchTest, AForeignPrefixListsMissingAndUnknownNamesWithTheirNeighbours) {
  const Status status = MatchNames(SpecsOf({"model.model.norm.weight"}), SpecsOf({"model.norm.weight"}), {}).status();

  EXPECT_EQ(
      status,
      Status::FailedPrecondition(
          "tensor_missing",
          "the engine needs 1 that no sender has: model.norm.weight (nearest: model.model.norm.weight); the sender "
          "has 1 that the engine does not know: model.model.norm.weight (nearest: model.norm.weight)"));
}

TEST(NameMatchTest, AnExtraNameAloneIsUnexpectedAndOneLayerLessIsMissing) {
  EXPECT_EQ(MatchNames(SpecsOf({"v", "w"}), SpecsOf({"w"}), {}).status().reason(), "tensor_unexpected");
  EXPECT_EQ(MatchNames(SpecsOf({"w"}), SpecsOf({"v", "w"}), {}).status().reason(), "tensor_missing");
}

TEST(NameMatchTest, OnlyTheFirstTwentyNamesArePrintedWithTheTotal) {
  std::vector<std::string> names;
  for (int i = 0; i < 25; ++i) names.push_back(fmt::format("layer_number_{}_", i));

  const Status status = MatchNames(SpecsOf({}), SpecsOf(names), {}).status();

  EXPECT_NE(status.message().find("needs 25 "), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("layer_number_19_ and 5 more"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("layer_number_20_"), std::string::npos) << status.message();
}

TEST(NameMatchTest, AnIgnorePatternThatIgnoresNothingIsAnError) {
  const Status status = MatchNames(SpecsOf({"w", "x"}), SpecsOf({"w"}), {"x", "vision.*", "w"}).status();

  EXPECT_EQ(status.reason(), "ignore_matches_nothing");
  EXPECT_NE(status.message().find("vision.*, w"), std::string::npos) << status.message();
}

TEST(NameMatchTest, PatternsThatOverlapAllCountAsMatching) {
  EXPECT_TRUE(MatchNames(SpecsOf({"w", "x.a"}), SpecsOf({"w"}), {"x.a", "x.*", "*", "x.a"}).ok());
}

}  // namespace
}  // namespace bascule
