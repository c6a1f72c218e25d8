// The engine with its threads on a device, over real slots in the device's memory and the fake CUDA runtime.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "base/worker.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/device_slot_work.h"
#include "engine_side/weight_slots.h"
#include "tests/support/device_work/device_work.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/watched_clock.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {
namespace {

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

// Keeps what it hears; `on_token` runs on the scheduler thread, with the number of tokens so far.
class Answer final : public GenerateSink {
 public:
  explicit Answer(std::function<void(std::size_t)> on_token = nullptr) : on_token_(std::move(on_token)) {}
  void OnToken(const GeneratedToken& token) override {
    tokens.push_back(token);
    if (on_token_) on_token_(tokens.size());
  }
  void OnFinish(FinishReason reason, const Status& why) override {
    const MutexLock lock(mu_);
    finish_ = reason;
    why_ = why;
    changed_.NotifyAll();
  }
  FinishReason Wait() {
    const MutexLock lock(mu_);
    while (!finish_) CHECK(Clock::Real().WaitUntil(changed_, mu_, Soon().point()));
    return *finish_;
  }
  std::string reason() const { return why_.reason(); }
  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> ids;
    for (const GeneratedToken& token : tokens) ids.push_back(token.id);
    return ids;
  }
  std::vector<GeneratedToken> tokens;  // of the scheduler thread until Wait has returned

 private:
  const std::function<void(std::size_t)> on_token_;
  Mutex mu_;
  CondVar changed_;
  std::optional<FinishReason> finish_ GUARDED_BY(mu_);
  Status why_;
};

class DeviceEngineTest : public testing::Test {
 protected:
  DeviceEngineTest() {
    (void)FakeDevice();
    options_.devices = DecodeDevices::Open(std::vector<int>{0}).value();
    options_.devices.gemm_workspace_bytes = 1 << 20;
    work_ = MakeDeviceSlotWork(options_.devices.devices, {}, Clock::Real()).value();
    slots_ = WeightSlots::Create(ModelOf(1).layout, 2, Clock::Real(), {}, *work_).value();
    options_.config = config_;
    options_.tensors = ModelOf(1).tensors;
    options_.kv_pages = 64;
    options_.clock = &clock_;
    engine_ = DecodeEngine::Create(options_).value();
    PutLive(1, Stage(1));
    engine_->Start([this] { return slots_->AcquireLive(); });
  }
  ~DeviceEngineTest() override { engine_->Stop(); }

  FusedModel ModelOf(std::uint32_t number) const { return Fuse(config_, RandomWeights(config_, number), DType::kBf16); }
  int Stage(std::uint32_t number) {
    const FusedModel model = ModelOf(number);
    const int slot = slots_->ReserveShadow(Soon()).value();
    for (std::size_t t = 0; t < model.bytes[0].size(); ++t) {
      const std::span<std::byte> target = slots_->ShadowTensor(slot, 0, static_cast<int>(t));
      CHECK(WriteDevice(FakeDevice(), target, model.bytes[0][t]).ok());
    }
    return slot;
  }
  void PutLive(std::uint32_t number, int slot) {
    const WeightVersion version{.run = "test", .number = number, .digest = Sha256Of(std::to_string(number))};
    const auto point = engine_->RunAtSafePoint(
        0,
        [&] {
          slots_->Flip(slot, version);
          engine_->InvalidateKv(version);
        },
        Soon());
    ASSERT_TRUE(point.ok()) << point.status().ToString();
  }
  // Of an engine on processors that has known one version only.
  std::vector<std::int32_t> HostTokens(std::uint32_t number, std::vector<std::int32_t> prompt, std::int32_t count) {
    const PlainWeights weights(ModelOf(number), number);
    DecodeOptions options = options_;
    options.devices = {};
    const auto slots = WeightSlots::Create(ModelOf(number).layout, 2, Clock::Real()).value();
    const int slot = slots->ReserveShadow(Soon()).value();
    for (std::size_t t = 0; t < ModelOf(number).bytes[0].size(); ++t) {
      std::ranges::copy(weights.Tensor(0, static_cast<int>(t)),
                        slots->ShadowTensor(slot, 0, static_cast<int>(t)).begin());
    }
    slots->Flip(slot, weights.version());
    const auto engine = DecodeEngine::Create(options).value();
    engine->Start([&] { return slots->AcquireLive(); });
    const auto answer = std::make_shared<Answer>();
    CHECK(engine->Submit({.prompt = std::move(prompt), .max_new_tokens = count}, answer).ok());
    answer->Wait();
    engine->Stop();
    return answer->ids();
  }
  std::shared_ptr<Answer> Ask(std::int32_t count) {
    auto answer = std::make_shared<Answer>();
    CHECK(engine_->Submit({.prompt = {3, 1, 4}, .max_new_tokens = count}, answer).ok());
    return answer;
  }

  const ModelConfig config_ = TinyLlama();
  WatchedClock clock_;
  DecodeOptions options_;
  std::unique_ptr<SlotWork> work_;
  std::unique_ptr<WeightSlots> slots_;
  std::unique_ptr<DecodeEngine> engine_;
};

TEST_F(DeviceEngineTest, AFlipInTheMiddleGoesOnUnderTheNewSlotWithTheHostsTokens) {
  EXPECT_EQ(engine_->status().device, "cuda:0");
  const int next = Stage(2);
  std::vector<std::int32_t> prompt = {3, 1, 4};
  Worker flipping;
  // Decoding stands until the flip waits for its safe point.
  const auto answer = std::make_shared<Answer>([&](std::size_t count) {
    if (count != 3) return;
    flipping = Worker("flip", [&](const std::stop_token&) {
      clock_.Watch(std::this_thread::get_id());
      PutLive(2, next);
    });
    while (!clock_.waiting()) std::this_thread::yield();
  });

  ASSERT_TRUE(engine_->Submit({.prompt = prompt, .max_new_tokens = 8}, answer).ok());

  EXPECT_EQ(answer->Wait(), FinishReason::kLength);
  flipping.Join();
  const std::vector<std::int32_t> ids = answer->ids();
  const auto flip = std::ranges::find(answer->tokens, 2u, &GeneratedToken::version) - answer->tokens.begin();
  ASSERT_EQ(flip, 3);
  const std::vector<std::int32_t> before(ids.begin(), ids.begin() + flip), after(ids.begin() + flip, ids.end());
  EXPECT_EQ(before, HostTokens(1, prompt, static_cast<std::int32_t>(flip)));
  prompt.insert(prompt.end(), before.begin(), before.end());
  EXPECT_EQ(after, HostTokens(2, prompt, static_cast<std::int32_t>(after.size())));
}

TEST_F(DeviceEngineTest, AStepThatFailsEndsWhatRunsAndTheEngineGoesOn) {
  FakeCuda::Fail("cublasGemmEx_64", 3, 13);
  const auto failed = Ask(5);
  EXPECT_EQ(failed->Wait(), FinishReason::kFailed);
  EXPECT_EQ(failed->reason(), "device_error");

  const auto next = Ask(5);

  EXPECT_EQ(next->Wait(), FinishReason::kLength);
  EXPECT_EQ(next->ids(), HostTokens(1, {3, 1, 4}, 5));
  EXPECT_EQ(engine_->status().kv_pages_used, 0);
}

TEST_F(DeviceEngineTest, AfterADeviceIsLostEveryRequestIsRefusedByThatReason) {
  FakeCuda::Fail("cudaEventQuery", 1, cudaErrorIllegalAddress);
  const auto failed = Ask(5);
  EXPECT_EQ(failed->Wait(), FinishReason::kFailed);
  EXPECT_EQ(failed->reason(), "device_lost");

  const auto refused = engine_->Submit({.prompt = {1}}, std::make_shared<Answer>());

  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.status().reason(), "device_lost");
}

}  // namespace
}  // namespace bascule
