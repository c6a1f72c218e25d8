#include "kernels/sample.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/sample_device.h"
#include "tests/unit/device_kernels/random_floats.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

class DeviceSampleTest : public DeviceKernelTest {
 protected:
  struct Case {
    std::vector<float> logits;
    SampleRule rule;
    double uniform = 0;
  };

  // One launch for all of them; their logits are as many.
  std::vector<TokenLogprob> OnDevice(const std::vector<Case>& cases) {
    const auto size = static_cast<std::int64_t>(cases.front().logits.size());
    std::vector<std::unique_ptr<TestMemory>> kept;
    std::vector<SampleRow> rows;
    for (const Case& one : cases) {
      kept.push_back(UploadItems<float>(one.logits));
      const auto* const logits = reinterpret_cast<const float*>(kept.back()->data());
      kept.push_back(UploadItems<std::int32_t>(one.rule.banned));
      rows.push_back({.logits = logits,
                      .banned = reinterpret_cast<const std::int32_t*>(kept.back()->data()),
                      .banned_count = static_cast<std::int64_t>(one.rule.banned.size()),
                      .temperature = one.rule.temperature,
                      .given = one.rule.given,
                      .uniform = one.uniform});
    }
    const auto count = static_cast<std::int64_t>(cases.size());
    const auto memory = UploadItems<SampleRow>(rows);
    const auto weights = Upload(std::vector<std::byte>(static_cast<std::size_t>(4 * count * SampleWeights(size))));
    const auto sums = Upload(std::vector<std::byte>(static_cast<std::size_t>(8 * count * SampleSums(size))));
    const auto tokens = UploadItems<TokenLogprob>(std::vector<TokenLogprob>(cases.size()));
    Run(kernels().sample, reinterpret_cast<const SampleRow*>(memory->data()), count, size,
        reinterpret_cast<float*>(weights->data()), reinterpret_cast<double*>(sums->data()),
        reinterpret_cast<TokenLogprob*>(tokens->data()));
    return DownloadItems<TokenLogprob>(*tokens);
  }

  static void ExpectAsOnHost(const Case& one, const TokenLogprob& token) {
    std::vector<float> scratch(one.logits.size());
    const auto expected = SampleOnHost(one.logits, one.rule, one.uniform, scratch);
    ASSERT_TRUE(expected.has_value());
    EXPECT_EQ(token.id, expected->id);
    EXPECT_LE(std::abs(std::bit_cast<std::int32_t>(token.logprob) - std::bit_cast<std::int32_t>(expected->logprob)), 1)
        << token.logprob << " and " << expected->logprob;
  }
};

TEST_F(DeviceSampleTest, ChoosesTheHostsTokenUnderEveryRuleItKnows) {
  Random random(23);
  for (const std::int64_t size : {1, 15, 1000, 1024, 1025, 9001}) {
    SCOPED_TRACE(size);
    std::vector<std::int32_t> banned;
    for (int i = 0; i < 20; ++i) banned.push_back(static_cast<std::int32_t>(Uniform(random, -1, size)));
    std::vector<Case> cases;
    for (int i = 0; i < 12; ++i) {
      Case one{.logits = RandomFloats(random, static_cast<std::size_t>(size)), .rule = {}, .uniform = 0};
      one.rule.temperature = std::array{0.0f, 0.3f, 1.0f, 1.7f}[static_cast<std::size_t>(i % 4)];
      if (i % 3 == 0) one.rule.banned = banned;
      if (i == 11) one.rule.given = static_cast<std::int32_t>(Uniform(random, 0, size - 1));
      one.uniform = i == 5 ? 0 : i == 6 ? 1 - 0x1p-53 : UniformAt(5, static_cast<std::uint64_t>(i));
      cases.push_back(one);
    }

    const std::vector<TokenLogprob> tokens = OnDevice(cases);

    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectAsOnHost(cases[i], tokens[i]);
    }
  }
}

TEST_F(DeviceSampleTest, OfEqualLogitsTheLowestIdIsTakenAndABannedVocabularyBansNothing) {
  Case equal{.logits = std::vector<float>(3000, 1.5f), .rule = {}, .uniform = 0};
  std::vector<std::int32_t> all(3000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  Case all_banned = equal;
  all_banned.rule.banned = all;
  Case first_banned = equal;
  first_banned.rule.banned = std::span(all).first(700);
  Case all_banned_drawn = all_banned;
  all_banned_drawn.rule.temperature = 1;
  all_banned_drawn.uniform = 0.5;

  const auto tokens = OnDevice({equal, all_banned, first_banned, all_banned_drawn});

  EXPECT_EQ(tokens[0].id, 0);
  EXPECT_EQ(tokens[1].id, 0);
  EXPECT_EQ(tokens[2].id, 700);
  ExpectAsOnHost(all_banned_drawn, tokens[3]);
}

TEST_F(DeviceSampleTest, ARowThatIsNotFiniteHasNoTokenAndItsNeighboursHave) {
  Case good{.logits = {1, 2, 3}, .rule = {}, .uniform = 0};
  Case nan = good, infinite = good;
  nan.logits[1] = std::nanf("");
  infinite.logits[2] = -__builtin_inff();

  const auto tokens = OnDevice({nan, good, infinite});

  EXPECT_EQ(tokens[0].id, -1);
  EXPECT_EQ(tokens[1].id, 2);
  EXPECT_EQ(tokens[2].id, -1);
}

}  // namespace
}  // namespace bascule
