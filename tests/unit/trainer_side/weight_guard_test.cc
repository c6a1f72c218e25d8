#include "trainer_side/weight_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/unit/trainer_side/publisher_fixture.h"
#include "trainer_side/tensor_source.h"

namespace bascule {
namespace {

using testing::HasSubstr;

std::uint16_t Bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

class WeightGuardTest : public testing::Test {
 protected:
  WeightGuardTest() {
    CHECK(source_
              .Add(0, {.tensor = {"f32", DType::kF32, {3, 4}},
                       .box = Box::Whole({3, 4}),
                       .data = f32_.data(),
                       .stride = {8, 2}})
              .ok());
    CHECK(source_.Add(1, {.tensor = {"bf16", DType::kBf16, {5}}, .box = Box::Whole({5}), .data = bf16_.data()}).ok());
    CHECK(source_.Add(1, {.tensor = {"f16", DType::kF16, {2}}, .box = Box::Whole({2}), .data = f16_.data()}).ok());
    CHECK(source_.Add(1, {.tensor = {"ids", DType::kU16, {1}}, .box = Box::Whole({1}), .data = ids_.data()}).ok());
  }

  std::array<float, 24> f32_{};  // every second element is a weight
  std::array<std::uint16_t, 5> bf16_{};
  std::array<std::uint16_t, 2> f16_{};
  std::array<std::uint16_t, 1> ids_ = {0xffff};  // a NaN if it were a float
  TensorSource source_{/*trainer_ranks=*/2};
};

TEST_F(WeightGuardTest, OrdinaryWeightsPass) {
  f32_[0] = -3.5F;
  bf16_[4] = Bf16(2.0F);
  f16_[1] = 0x7bff;  // 65504, the largest of its format

  EXPECT_TRUE(CheckWeights(source_, {}).ok());
  EXPECT_TRUE(CheckWeights(source_, {.max_magnitude = 65504}).ok());
}

TEST_F(WeightGuardTest, ANaNOrAnInfinityAnywhereIsFoundByTensor) {
  for (const float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (std::size_t i = 0; i < 24; i += 2) {
      f32_[i] = bad;
      const Status status = CheckWeights(source_, {});
      EXPECT_EQ(status.reason(), "weights_not_finite");
      EXPECT_THAT(status.message(), HasSubstr("f32"));
      f32_[i] = 0;
    }
    for (std::uint16_t& weight : bf16_) {
      weight = Bf16(bad);
      EXPECT_THAT(CheckWeights(source_, {}).message(), HasSubstr("tensor bf16 has"));
      weight = 0;
    }
  }
  f16_[0] = 0xfc00;
  EXPECT_THAT(CheckWeights(source_, {}).message(), HasSubstr("tensor f16 has an infinity"));
}

TEST_F(WeightGuardTest, WhatLiesBetweenTheElementsIsNotLookedAt) {
  for (std::size_t i = 1; i < 24; i += 2) f32_[i] = std::nanf("");

  EXPECT_TRUE(CheckWeights(source_, {}).ok());
}

TEST_F(WeightGuardTest, AMagnitudeOutOfRangeIsNamedWithItsValue) {
  bf16_[3] = Bf16(-1024.0F);

  const Status status = CheckWeights(source_, {.max_magnitude = 1000});

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.reason(), "weights_too_large");
  EXPECT_THAT(status.message(), HasSubstr("tensor bf16 has a weight of 1024"));
  EXPECT_TRUE(CheckWeights(source_, {.max_magnitude = 1024}).ok());
}

class GuardedPublishTest : public PublisherFixture {};

TEST_F(GuardedPublishTest, WeightsThatTheGuardRefusesAreSentToNobody) {
  AddEngine();
  AddEngine();
  options_.guard = WeightGuard{};
  trainer_->Fill(1);  // NaNs and infinities among them
  MakePublisher();

  const PublishReport report = Publish();

  for (const ReplicaReport& replica : report.replicas) EXPECT_EQ(replica.status.reason(), "weights_not_finite");
  for (const auto& engine : engines_) EXPECT_TRUE(engine->account().offers.empty());
}

// C-053.
TEST_F(GuardedPublishTest, TooFewReplicasEndAPublishAtOnce) {
  AddEngine();
  AddEngine();
  options_.replicas.emplace_back("nobody");
  options_.min_replicas = 3;
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.reason(), "too_few_replicas");
  EXPECT_EQ(report.replicas[2].status.reason(), "peer_unreachable");
  for (const auto& engine : engines_) EXPECT_TRUE(engine->account().offers.empty());
}

}  // namespace
}  // namespace bascule
