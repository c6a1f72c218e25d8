// The decoder on devices against the one on processors. Over the fake CUDA runtime and the fake cuBLAS in one program,
// which says nothing about a GPU's numbers or speed; over a GPU in another.
#include "engine_side/decode/device_decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/device_decode/decode_bench.h"
#include "tests/unit/device_decode/device_weights.h"

namespace bascule {
namespace {

// Sums of fewer than 100 terms in two or three layers, each rounded otherwise than the host's.
constexpr float kTolerance = 5e-5f;

// Where a machine has fewer devices than ranks, ranks share.
Result<DecodeDevices> DevicesFor(int ranks) {
  std::vector<int> ordinals(static_cast<std::size_t>(ranks), 0);
  for (int rank = 1; rank < ranks; ++rank) {
    if (DecodeDevices::Open(std::vector<int>{rank}).ok()) ordinals[static_cast<std::size_t>(rank)] = rank;
  }
  return DecodeDevices::Open(ordinals);
}

std::vector<std::shared_ptr<Heard>> Answers(const ModelConfig& config, Decoder& decoder,
                                            const std::shared_ptr<StepWeights>& weights) {
  DecodeBench bench(config, decoder);
  std::vector<std::shared_ptr<Heard>> heard;
  for (const GenerateRequest& request : MixedRequests(config)) heard.push_back(bench.Submit(request));
  const Status run = bench.Run(weights);
  EXPECT_TRUE(run.ok()) << run.ToString();
  return heard;
}

struct ModelCase {
  const char* name;
  ModelConfig config;
  DType dtype;
  int ranks;
  bool nccl = false;  // in place of copies between ranks
};

class DeviceDecoderTest : public testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    Result<DecodeDevices> devices = DevicesFor(ranks_);
    if (devices.status().reason() == "no_cuda_device") GTEST_SKIP() << devices.status().ToString();
    ASSERT_TRUE(devices.ok()) << devices.status().ToString();
    devices_ = std::move(devices).value();
    devices_.gemm_workspace_bytes = 1 << 20;
    if (!GetParam().nccl) devices_.collective.reset();
    weights_ = WeightsOf(1);
  }
  std::shared_ptr<DeviceWeights> WeightsOf(std::uint32_t number) {
    return std::make_shared<DeviceWeights>(ModelOf(number), number, devices_.devices);
  }
  FusedModel ModelOf(std::uint32_t number) const {
    return Fuse(config_, RandomWeights(config_, number), GetParam().dtype, ranks_);
  }
  DecoderOptions Options() const { return BenchOptions(config_, ModelOf(1).tensors, type_, ranks_); }
  std::unique_ptr<DeviceDecoder> Open(bool graphs) {
    devices_.graphs = graphs;
    auto decoder = DeviceDecoder::Create(Options(), devices_, BenchKv(Options()), kBenchPages, Clock::Real());
    EXPECT_TRUE(decoder.ok()) << decoder.status().ToString();
    return std::move(decoder).value();
  }
  std::vector<std::shared_ptr<Heard>> HostAnswers(std::uint32_t number) {
    const auto cache = *KvCache::Create(BenchKv(Options()), kBenchPages);
    const auto decoder = *HostDecoder::Create(Options(), *cache);
    return Answers(config_, *decoder, std::make_shared<PlainWeights>(ModelOf(number), number));
  }

  const ModelConfig config_ = GetParam().config;
  const int ranks_ = GetParam().ranks;
  const WeightType type_ = GetParam().dtype == DType::kBf16 ? WeightType::kBf16 : WeightType::kF32;
  DecodeDevices devices_;
  std::shared_ptr<DeviceWeights> weights_;
};

INSTANTIATE_TEST_SUITE_P(Models, DeviceDecoderTest,
                         testing::Values(ModelCase{"Llama", TinyLlama(), DType::kBf16, 1},
                                         ModelCase{"LlamaTwoRanks", TinyLlama(), DType::kBf16, 2},
                                         ModelCase{"Qwen3TwoRanks", TinyQwen3(), DType::kBf16, 2},
                                         ModelCase{"OneKvHeadTwoRanks", OneKvHead(), DType::kF32, 2},
                                         ModelCase{"AllBiasesTwoRanksNccl", AllBiases(), DType::kBf16, 2, true}),
                         [](const auto& test) { return test.param.name; });

TEST_P(DeviceDecoderTest, TokensAreTheHostsAndLogprobsDifferByRoundingAlone) {
  const auto decoder = Open(/*graphs=*/true);
  const auto wanted = HostAnswers(1);

  const auto heard = Answers(config_, *decoder, weights_);

  for (std::size_t i = 0; i < wanted.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(heard[i]->ids(), wanted[i]->ids());
    EXPECT_EQ(heard[i]->finish, wanted[i]->finish);
    ASSERT_EQ(heard[i]->tokens.size(), wanted[i]->tokens.size());
    for (std::size_t t = 0; t < wanted[i]->tokens.size(); ++t) {
      EXPECT_NEAR(heard[i]->tokens[t].logprob, wanted[i]->tokens[t].logprob, kTolerance);
      ASSERT_EQ(heard[i]->tokens[t].top.size(), wanted[i]->tokens[t].top.size());
    }
    ASSERT_EQ(heard[i]->prompt.logprobs.size(), wanted[i]->prompt.logprobs.size());
    for (std::size_t t = 0; t < wanted[i]->prompt.logprobs.size(); ++t) {
      EXPECT_NEAR(heard[i]->prompt.logprobs[t], wanted[i]->prompt.logprobs[t], kTolerance);
    }
  }
  EXPECT_GT(heard[4]->prompt.shared_tokens, 0);
}

class DeviceGraphTest : public DeviceDecoderTest {};
INSTANTIATE_TEST_SUITE_P(Models, DeviceGraphTest,
                         testing::Values(ModelCase{"Llama", TinyLlama(), DType::kBf16, 1},
                                         ModelCase{"Qwen3TwoRanks", TinyQwen3(), DType::kBf16, 2}),
                         [](const auto& test) { return test.param.name; });

TEST_P(DeviceGraphTest, WithGraphsAndWithoutTheBitsAreTheSame) {
  const auto without = Open(/*graphs=*/false);
  const auto wanted = Answers(config_, *without, weights_);
  const auto decoder = Open(/*graphs=*/true);

  const auto heard = Answers(config_, *decoder, weights_);

  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(heard[i]->ids(), wanted[i]->ids()) << i;
    EXPECT_EQ(heard[i]->logprobs(), wanted[i]->logprobs()) << i;
  }
  EXPECT_GT(decoder->graphs(), 0u);
  EXPECT_EQ(without->graphs(), 0u);
}

// One request that decodes through flips between two slots and back, keeping its state.
TEST_P(DeviceGraphTest, AFlipInTheMiddleGoesOnWithTheGraphsOfTheOtherSlotAndBack) {
  const auto other = WeightsOf(2);
  const auto tokens = [&](Decoder& decoder) {
    DecodeBench bench(config_, decoder);
    const auto heard = bench.Submit({.prompt = {3, 1, 4, 1, 5}, .max_new_tokens = 16, .kv_policy = KvPolicy::kKeep});
    for (const auto& weights : {weights_, other, weights_, other}) {
      bench.scheduler().Invalidate(weights->version());
      EXPECT_TRUE(bench.Run(weights, 4).ok());
    }
    EXPECT_TRUE(bench.Run(other).ok());
    return heard->ids();
  };
  const auto without = Open(/*graphs=*/false);
  const std::vector<std::int32_t> wanted = tokens(*without);
  const auto decoder = Open(/*graphs=*/true);

  EXPECT_EQ(tokens(*decoder), wanted);
  EXPECT_EQ(decoder->graphs(), 2u);  // one row, two slots
  EXPECT_EQ(tokens(*decoder), wanted);
  EXPECT_EQ(decoder->graphs(), 2u);
}

TEST_P(DeviceGraphTest, AFlipInPlaceGoesOnWithTheSameGraphAndItsNewBytes) {
  const auto decoder = Open(/*graphs=*/true);
  const auto wanted = HostAnswers(2);
  (void)Answers(config_, *decoder, weights_);
  const std::size_t graphs = decoder->graphs();

  weights_->Write(ModelOf(2), 2);
  const auto heard = Answers(config_, *decoder, weights_);

  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(heard[i]->ids(), wanted[i]->ids()) << i;
  EXPECT_EQ(decoder->graphs(), graphs);
}

}  // namespace
}  // namespace bascule
