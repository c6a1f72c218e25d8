#include "engine_side/flip_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "base/worker.h"
#include "tests/support/watched_clock.h"

namespace bascule {
namespace {

// An engine that is always between two steps.
class IdleHooks final : public EngineHooks {
 public:
  Result<SafePoint> RunAtSafePoint(std::uint64_t /*at_step*/, const std::function<void()>& critical,
                                   Deadline /*deadline*/) override {
    critical();
    return SafePoint{};
  }
  KvReport InvalidateKv(const WeightVersion& /*live*/) override { return {}; }
};

class FlipGateTest : public testing::Test {
 protected:
  static Layout OneTensor() {
    Layout layout;
    layout.ranks = {RankLayout{.tensors = {{"a", DType::kU8, {3}, {}}}, .rows = {}}};
    return layout;
  }
  Deadline Soon() { return Deadline::After(clock_, std::chrono::seconds(60)); }
  Result<FlipReport> Flip(std::uint64_t number, const FlipGate::Record& record) {
    const int slot = *slots_->ReserveShadow(Soon());
    return gate_.Flip({.slot = slot, .version = {"run", number, {}}, .held = {}}, 0, Soon(), record);
  }
  FlipGate::Record AddTo(std::vector<std::uint64_t>& records) {
    return [&records](const FlipReport& report) { records.push_back(report.version.number); };
  }

  WatchedClock clock_;
  IdleHooks hooks_;
  std::unique_ptr<WeightSlots> slots_ = *WeightSlots::Create(OneTensor(), 2, clock_);
  FlipGate gate_{*slots_, hooks_, clock_};
};

TEST_F(FlipGateTest, WhatHasGoneLiveIsOnRecordBeforeARollbackTakesItBack) {
  std::vector<std::uint64_t> records;
  ASSERT_TRUE(Flip(1, AddTo(records)).ok());
  std::optional<Result<FlipReport>> back;
  std::atomic<bool> ended = false;
  Worker operators;

  const auto flipped = Flip(2, [&](const FlipReport& report) {
    operators = Worker("operator", [&](const std::stop_token&) {
      clock_.Watch(std::this_thread::get_id());
      back.emplace(gate_.Rollback(std::nullopt, /*refused=*/false, Soon(), AddTo(records)));
      ended = true;
    });
    while (!clock_.waiting() && !ended) std::this_thread::yield();
    records.push_back(report.version.number);
  });
  operators.Join();

  ASSERT_TRUE(flipped.ok());
  ASSERT_TRUE(back->ok()) << back->status().ToString();
  EXPECT_THAT(records, testing::ElementsAre(1, 2, 1));
  EXPECT_EQ(slots_->live()->number, 1u);
}

TEST_F(FlipGateTest, WhatDoesNotGoLiveIsNotRecordedAndTheNextOneIs) {
  std::vector<std::uint64_t> records;

  EXPECT_EQ(gate_.Rollback(std::nullopt, /*refused=*/false, Soon(), AddTo(records)).status().reason(),
            "no_kept_version");
  EXPECT_TRUE(Flip(1, AddTo(records)).ok());

  EXPECT_THAT(records, testing::ElementsAre(1));
}

}  // namespace
}  // namespace bascule
