// The parts of the loop that learn: the task's reward, the policy's arithmetic, advantages and loss, and trainer ranks
// that hold shares of it.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>

#include "examples/03_rl_loop/collective.h"
#include "examples/03_rl_loop/parity_probe.h"
#include "examples/03_rl_loop/task.h"
#include "examples/03_rl_loop/trainer.h"
#include "examples/03_rl_loop/trainer_rank.h"

#include "examples/03_rl_loop/grpo.h"
#include "examples/03_rl_loop/policy.h"

#include <torch/torch.h>

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

// Calls `work` on a thread for each rank, joined to one another.
void OnRanks(int size, const std::function<void(Collective&)>& work) {
  auto first = Collective::Open("127.0.0.1", 0, {.rank = 0, .world_size = size});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const std::uint16_t port = (*first)->port();
  std::vector<std::jthread> threads;
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back([&work, size, rank, port] {
      auto opened = Collective::Open("127.0.0.1", port, {.rank = rank, .world_size = size});
      ASSERT_TRUE(opened.ok() && (*opened)->Join().ok()) << rank;
      work(**opened);
    });
  }
  ASSERT_TRUE((*first)->Join().ok());
  work(**first);
}

TEST(CollectiveTest, EveryRankGetsThePiecesInOrderAndTheSum) {
  OnRanks(3, [](Collective& ranks) {
    std::vector<double> numbers = {1, static_cast<double>(ranks.rank())};

    const auto gathered = ranks.Gather(torch::full({2}, ranks.rank(), torch::kFloat32));
    const Status summed = ranks.Sum(numbers);

    ASSERT_TRUE(gathered.ok() && summed.ok());
    EXPECT_TRUE(torch::equal(*gathered, torch::tensor({0.0F, 0.0F, 1.0F, 1.0F, 2.0F, 2.0F})));
    EXPECT_EQ(numbers, (std::vector<double>{3, 3}));
  });
}

// The parameters after three steps on `ids`, of which every rank has its share of rows.
TensorMap TrainOn(const torch::Tensor& ids, int size) {
  const PolicyConfig config;
  const TensorMap initial = InitialTensors(config, 1);
  TensorMap trained;
  OnRanks(size, [&](Collective& ranks) {
    TrainerRank rank(initial, ranks, {.max_grad_norm = 0.1});
    const torch::Tensor mine = ids.chunk(size)[static_cast<std::size_t>(ranks.rank())];
    for (int step = 0; step < 3; ++step) {
      const auto parameters = rank.Gather();
      ASSERT_TRUE(parameters.ok());
      (PolicyLogits(config, *parameters, mine).square().mean() * mine.size(0) / ids.size(0)).backward();
      ASSERT_TRUE(rank.ReduceGradients().ok());
      const auto norm = rank.Step(step);
      ASSERT_TRUE(norm.ok());
      EXPECT_GT(*norm, 0.1);
    }
    const auto parameters = rank.Gather();
    ASSERT_TRUE(parameters.ok());
    if (ranks.rank() == 0) trained = *parameters;
  });
  return trained;
}

TEST(TrainerRankTest, RanksThatShareParametersAndBatchTrainLikeOne) {
  const torch::Tensor ids = torch::tensor({{1, 2, 3, 4}, {4, 3, 2, 1}, {5, 6, 7, 8}, {9, 1, 9, 1}, {2, 2, 3, 3}});

  const TensorMap one = TrainOn(ids, 1);
  const TensorMap three = TrainOn(ids, 3);  // 2, 2 and 1 rows; 102784 parameters divide by 3 in no layer

  ASSERT_EQ(one.size(), three.size());
  // Adam divides small gradients by their own size, so that rounding in them shows.
  for (const auto& [name, tensor] : one) EXPECT_TRUE(torch::allclose(tensor, three.at(name), 1e-3, 1e-4)) << name;
}

TEST(ParityProbeTest, TheDeviationIsThatOfTheDrawnTokens) {
  const ProbeAnswer answer = {.tokens = {1, 0}, .logprobs = {std::log(0.5F), std::log(0.25F)}};
  const std::vector<float> expected = {0, std::log(0.5F), 0, std::log(0.5F), 0, 0};  // three tokens in the vocabulary

  EXPECT_NEAR(DeviationOf(answer, expected), (0 + 1) / 2.0, 1e-6);
}

TEST(TrainerTest, TheEnginesExpectedProbabilitiesAreThoseOfTheMastersInBf16) {
  const auto ranks = Collective::Open("127.0.0.1", 0, {});
  ASSERT_TRUE(ranks.ok());
  Trainer trainer({.seed = 3}, **ranks);
  ASSERT_TRUE(trainer.Gather().ok());

  const std::vector<float> logprobs = trainer.NextTokenLogprobs({{10, 1, 2}, {10, 5}});

  const PolicyConfig config;
  TensorMap rounded;
  for (const auto& [name, tensor] : InitialTensors(config, 3)) {
    rounded.emplace(name, tensor.to(torch::kBFloat16).to(torch::kFloat32));
  }
  const torch::Tensor last = PolicyLogits(config, rounded, torch::tensor({{10, 5}}))[0][1].log_softmax(0);
  ASSERT_EQ(logprobs.size(), 2U * 32U);
  for (int token = 0; token < 32; ++token) {
    EXPECT_EQ(logprobs[static_cast<std::size_t>(32 + token)], last[token].item<float>()) << token;
  }
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

}  // namespace
}  // namespace bascule::rl_loop
