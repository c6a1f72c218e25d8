// What a decoder on devices makes of CUDA's and cuBLAS's failures, and what an event that is not waited for does, over
// the fake libraries.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_side/decode/device_decoder.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/unit/device_decode/decode_bench.h"
#include "tests/unit/device_decode/device_weights.h"

namespace bascule {
namespace {

const GenerateRequest kRequest{.prompt = {3, 1, 4, 1, 5}, .max_new_tokens = 5};

class DecodeFaultsTest : public testing::Test {
 protected:
  void Open(int ranks, bool graphs, Duration deadline = std::chrono::seconds(60)) {
    std::vector<int> ordinals;
    for (int rank = 0; rank < ranks; ++rank) ordinals.push_back(rank);
    (void)FakeDevice();
    devices_ = DecodeDevices::Open(ordinals).value();
    devices_.graphs = graphs;
    devices_.collective.reset();
    devices_.step_deadline = deadline;
    devices_.gemm_workspace_bytes = 1 << 20;
    const FusedModel model = Fuse(config_, RandomWeights(config_, 1), DType::kBf16, ranks);
    weights_ = std::make_shared<DeviceWeights>(model, 1, devices_.devices);
    options_ = BenchOptions(config_, model.tensors, WeightType::kBf16, ranks);
    decoder_ = DeviceDecoder::Create(options_, devices_, BenchKv(options_), kBenchPages, Clock::Real()).value();
  }
  std::shared_ptr<Heard> Ask(const GenerateRequest& request = kRequest) {
    DecodeBench bench(config_, *decoder_);
    const auto heard = bench.Submit(request);
    while (bench.scheduler().HasWork({})) (void)bench.Step(weights_);
    return heard;
  }

  const ModelConfig config_ = TinyLlama();
  DecodeDevices devices_;
  DecoderOptions options_;
  std::shared_ptr<DeviceWeights> weights_;
  std::unique_ptr<DeviceDecoder> decoder_;
};

struct Call {
  const char* function;
  int nth;
  int error;
  const char* reason;
};

TEST_F(DecodeFaultsTest, ACallThatFailsEndsTheRequestsOfItsStepByItsReasonAndTheNextOnesGetTheirTokens) {
  Open(/*ranks=*/2, /*graphs=*/true);
  const std::vector<std::int32_t> wanted = Ask()->ids();
  const std::vector<Call> calls = {{"cudaMemcpyAsync", 1, cudaErrorInvalidValue, "device_error"},
                                   {"cudaMemcpyAsync", 4, cudaErrorMemoryAllocation, "device_memory"},
                                   {"cudaLaunchKernelExC", 1, cudaErrorInvalidValue, "device_error"},
                                   {"cudaLaunchKernelExC", 23, cudaErrorInvalidValue, "device_error"},
                                   {"cudaEventRecord", 2, cudaErrorInvalidValue, "device_error"},
                                   {"cudaStreamWaitEvent", 3, cudaErrorInvalidValue, "device_error"},
                                   {"cudaEventQuery", 1, cudaErrorInvalidValue, "device_error"},
                                   {"cudaGraphLaunch", 2, cudaErrorMemoryAllocation, "device_memory"},
                                   {"cublasGemmEx_64", 1, CUBLAS_STATUS_EXECUTION_FAILED, "device_error"},
                                   {"cublasGemmEx_64", 9, CUBLAS_STATUS_ALLOC_FAILED, "device_memory"}};
  for (const Call& call : calls) {
    SCOPED_TRACE(call.function);
    FakeCuda::Fail(call.function, call.nth, call.error);

    const auto failed = Ask();
    EXPECT_EQ(failed->finish, FinishReason::kFailed);
    EXPECT_EQ(failed->status.reason(), call.reason) << failed->status.ToString();
    EXPECT_TRUE(decoder_->health().ok());

    EXPECT_EQ(Ask()->ids(), wanted);
  }
}

// A prompt, a token by itself and one by a graph, on one rank: all calls of CUDA and cuBLAS, one after another.
TEST_F(DecodeFaultsTest, EveryCallOfARequestMayFailOnceAndTheNextOneGetsItsTokens) {
  const GenerateRequest request{.prompt = {3, 1}, .max_new_tokens = 3};
  Open(/*ranks=*/1, /*graphs=*/true);
  const std::vector<std::int32_t> wanted = Ask(request)->ids();
  int failed = 0;
  int call = 1;
  for (;; ++call) {
    SCOPED_TRACE(call);
    FakeCuda::Fail("*", call, cudaErrorInvalidValue);

    const auto heard = Ask(request);

    if (FakeCuda::TakeBackFaults() == 1) break;  // no request has so many calls
    if (heard->finish == FinishReason::kFailed) {
      ++failed;
      EXPECT_EQ(heard->status.reason(), "device_error") << heard->status.ToString();
    } else {
      EXPECT_EQ(heard->ids(), wanted) << "a failure of what no token needs, such as a capture";
    }
    ASSERT_TRUE(decoder_->health().ok());
    if (call % 16 == 0) {
      EXPECT_EQ(Ask(request)->ids(), wanted);
    }
  }
  EXPECT_GT(failed, 50);
  EXPECT_EQ(Ask(request)->ids(), wanted);
}

TEST_F(DecodeFaultsTest, AGraphThatCannotBeCapturedCostsNoRequestAnything) {
  Open(/*ranks=*/1, /*graphs=*/false);
  const std::vector<std::int32_t> wanted = Ask()->ids();
  for (const char* const call : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"}) {
    Open(/*ranks=*/1, /*graphs=*/true);
    FakeCuda::Fail(call, 1, cudaErrorMemoryAllocation);

    EXPECT_EQ(Ask()->ids(), wanted) << call;
    EXPECT_EQ(decoder_->graphs(), 0u) << call;
  }
}

TEST_F(DecodeFaultsTest, ADeviceThatIsLostIsUsedNoMore) {
  Open(/*ranks=*/1, /*graphs=*/true);
  FakeCuda::Fail("cudaEventQuery", 2, cudaErrorIllegalAddress);

  EXPECT_EQ(Ask()->status.reason(), "device_lost");
  EXPECT_EQ(decoder_->health().reason(), "device_lost");
  EXPECT_EQ(Ask()->status.reason(), "device_lost");
}

TEST_F(DecodeFaultsTest, WorkThatNeverEndsIsGivenUpAtTheDeadlineAndItsWeightsAreKept) {
  Open(/*ranks=*/1, /*graphs=*/false, std::chrono::milliseconds(100));
  FakeCuda::Fail("cudaLaunchKernelExC", 5, FakeCuda::kLost);
  const long users = weights_.use_count();

  const auto failed = Ask();

  EXPECT_EQ(failed->status.reason(), "device_deadline");
  EXPECT_EQ(decoder_->health().reason(), "device_deadline");
  EXPECT_GT(weights_.use_count(), users);  // the device may still read them
}

TEST_F(DecodeFaultsTest, WithoutRoomNothingIsMadeAndNothingIsKept) {
  Open(/*ranks=*/2, /*graphs=*/true);
  decoder_.reset();
  const FakeCudaCensus before = FakeCuda::Census();
  for (int nth = 1; nth <= 9; ++nth) {
    FakeCuda::Fail("cudaMalloc", nth, cudaErrorMemoryAllocation);

    const Status status =
        DeviceDecoder::Create(options_, devices_, BenchKv(options_), kBenchPages, Clock::Real()).status();

    EXPECT_EQ(status.reason(), "device_memory") << nth;
    const FakeCudaCensus after = FakeCuda::Census();
    EXPECT_EQ(after.allocations, before.allocations) << nth;
    EXPECT_EQ(after.pinned_allocations, before.pinned_allocations) << nth;
    EXPECT_EQ(after.streams, before.streams) << nth;
    EXPECT_EQ(after.events, before.events) << nth;
  }
}

// The waits of a step on two ranks: one for the fork, two for each sum's parts and two for their being taken, ...
TEST_F(DecodeFaultsTest, AnEventThatIsNotWaitedForShowsInTheTokensUnderSomeOrderOfTheStreams) {
  Open(/*ranks=*/2, /*graphs=*/false);
  const std::vector<float> wanted = Ask()->logprobs();
  constexpr int kOfTheFork = 1, kOfOneSumsParts = 2;
  for (const int nth : {kOfTheFork, kOfTheFork + kOfOneSumsParts}) {
    int wrong = 0, right = 0;
    for (std::uint64_t seed = 1; seed <= 40 && wrong == 0; ++seed) {
      FakeCuda::SetSeed(seed);
      FakeCuda::Fail("cudaStreamWaitEvent", nth, FakeCuda::kLost);
      (Ask()->logprobs() == wanted ? right : wrong)++;
      if (!decoder_->health().ok()) break;
    }

    EXPECT_GT(wrong, 0) << "wait " << nth << " is one that nothing needs: " << right << " orders without it are right";
    EXPECT_EQ(Ask()->logprobs(), wanted);
  }
}

}  // namespace
}  // namespace bascule
