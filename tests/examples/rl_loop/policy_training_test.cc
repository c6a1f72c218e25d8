// The parts of the loop that learn: the task's reward, the policy's arithmetic, advantages and loss, and trainer ranks
// that hold shares of it.
#include "examples/03_rl_loop/torch_tensor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <set>

#include "examples/03_rl_loop/grpo.h"
#include "examples/03_rl_loop/policy.h"
#include "examples/03_rl_loop/task.h"
#include "examples/03_rl_loop/trainer_rank.h"

namespace bascule::rl_loop {
namespace {

TEST(SortTaskTest, RewardsEachDigitThatStandsInItsPlace) {
  const SortTask task{.digit_count = 3};
  const std::vector<TokenId> prompt = {SortTask::kStartToken, 7, 2, 5, SortTask::kSortedToken};

  EXPECT_EQ(task.TokenRewards(prompt, std::vector<TokenId>{2, 5, 7}), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(task.TokenRewards(prompt, std::vector<TokenId>{2, 7, 5}), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(task.TokenRewards(prompt, std::vector<TokenId>{2}), (std::vector<float>{1, 0, 0}));
}

TEST(SortTaskTest, EqualSeedsGiveEqualPromptsOfDistinctDigits) {
  const SortTask task;
  std::mt19937_64 one(3);
  std::mt19937_64 two(3);

  const std::vector<TokenId> prompt = task.SamplePrompt(one);

  EXPECT_EQ(prompt, task.SamplePrompt(two));
  EXPECT_EQ(prompt.size(), static_cast<std::size_t>(task.prompt_tokens()));
  EXPECT_EQ(std::set<TokenId>(prompt.begin(), prompt.end()).size(), prompt.size());
}

TEST(PolicyTest, ALaterTokenDoesNotChangeEarlierLogits) {
  const PolicyConfig config;
  const TensorMap tensors = InitialTensors(config, 1);
  const torch::Tensor ids = torch::tensor({{1, 2, 3, 4}, {1, 2, 3, 9}}, torch::kInt64);

  const torch::Tensor logits = PolicyLogits(config, tensors, ids);

  EXPECT_TRUE(torch::allclose(logits[0].narrow(0, 0, 3), logits[1].narrow(0, 0, 3), 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(logits[0][3], logits[1][3], 1e-3, 1e-3));
}

TEST(GrpoTest, AdvantagesCompareWithTheGroupAtTheSamePosition) {
  const torch::Tensor rewards = torch::tensor({{1.0f, 0.0f}, {0.0f, 0.0f}, {1.0f, 1.0f}, {1.0f, 0.0f}});

  const torch::Tensor advantages = GroupAdvantages(rewards, /*group_size=*/2);

  EXPECT_TRUE(torch::allclose(advantages, torch::tensor({{1.0f, 0.0f}, {-1.0f, 0.0f}, {0.0f, 1.0f}, {0.0f, -1.0f}}),
                              1e-2, 1e-3));
}

TEST(TrainerRankTest, TwoRanksTrainExactlyLikeOne) {
  const PolicyConfig config;
  const OptimizerOptions options{.max_grad_norm = 1e9};
  const TensorMap initial = InitialTensors(config, 1);
  const torch::Tensor ids = torch::tensor({{1, 2, 3, 4}}, torch::kInt64);
  const auto train = [&](int rank_count) {
    std::vector<TrainerRank> ranks;
    for (int r = 0; r < rank_count; ++r) ranks.emplace_back(initial, r, rank_count, options);
    for (int step = 0; step < 3; ++step) {
      PolicyLogits(config, GatherTensors(ranks), ids).square().mean().backward();
      OptimizerStep(ranks, options, step);
    }
    return GatherTensors(ranks);
  };

  const TensorMap one = train(1);
  const TensorMap two = train(2);

  for (const auto& [name, tensor] : one) EXPECT_TRUE(torch::equal(tensor, two.at(name))) << name;
}

TEST(GrpoTest, AClippedRatioEarnsNothingMoreAndHasNoGradient) {
  // Two responses of one token to one prompt; the policy gives the rewarded token twice the engine's probability.
  const torch::Tensor logits = torch::zeros({2, 2, 2}, torch::requires_grad());
  const float behind = std::log(0.25F);
  const RolloutBatch batch = {.group_size = 2,
                              .token_ids = torch::tensor({{0, 0}, {0, 1}}, torch::kInt64),
                              .behavior_logp = torch::tensor({{behind}, {behind}}),
                              .token_rewards = torch::tensor({{1.0F}, {0.0F}})};

  const GrpoLoss loss = ComputeGrpoLoss(batch, logits, {.clip_low = 0.2, .clip_high = 0.3});
  loss.loss.backward();

  EXPECT_NEAR(loss.ratio_deviation, 1.0, 1e-5);
  EXPECT_NEAR(loss.clipped_share, 0.5, 1e-6);
  EXPECT_NEAR(loss.entropy, std::log(2.0), 1e-5);
  // -(1.3 * 1 + 2 * -1) / 2, advantages being 1 and -1 but for the floor of the deviation.
  EXPECT_NEAR(loss.loss.item<double>(), 0.35, 1e-3);
  EXPECT_EQ(logits.grad()[0].abs().sum().item<double>(), 0.0);
  EXPECT_GT(logits.grad()[1].abs().sum().item<double>(), 0.1);
}

TEST(TorchTensorTest, AShardOfRowsIsSeenWhereItLies) {
  const torch::Tensor full = torch::arange(24, torch::kFloat32).view({6, 4});
  const torch::Tensor lower = full.narrow(0, 3, 3).narrow(1, 0, 2);

  const auto view = ViewOfRows("w", {6, 2}, 3, lower);

  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_EQ(view->tensor, (TensorSpec{"w", DType::kF32, {6, 2}}));
  EXPECT_EQ(view->box, (Box{{3, 0}, {3, 2}}));
  EXPECT_EQ(view->stride, (Dims{4, 1}));
  EXPECT_EQ(static_cast<const float*>(view->data)[0], 12.0F);
}

TEST(TorchTensorTest, ATypeThatTheBridgeDoesNotConvertIsRefused) {
  const torch::Tensor doubles = torch::zeros({2, 2}, torch::kFloat64);

  EXPECT_EQ(ViewOfRows("w", {2, 2}, 0, doubles).status().reason(), "unsupported_dtype");
}

}  // namespace
}  // namespace bascule::rl_loop
