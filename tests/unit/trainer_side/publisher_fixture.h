// A trainer and scripted engines on one loopback network.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/network.h"
#include "tests/support/fake_clock.h"
#include "tests/support/process_census.h"
#include "tests/support/scripted_engine/digest_oracle.h"
#include "tests/support/scripted_engine/scripted_engine.h"
#include "tests/support/scripted_engine/sharded_trainer.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

class PublisherFixture : public testing::Test {
 protected:
  explicit PublisherFixture(Clock& clock = Clock::Real()) : clock_(clock), control_(clock), dialer_(network_, clock) {
    options_.connect_timeout = options_.deadline;  // a slow machine is no fault
  }

  ScriptedEngine& AddEngine(int engine_ranks = 1) {
    return AddEngine(ShardedTrainer::EngineLayout(engine_ranks, trainer_->Rows()));
  }
  ScriptedEngine& AddEngine(Layout layout) {
    const std::string address = "engine-" + std::to_string(engines_.size());
    engines_.push_back(std::make_unique<ScriptedEngine>(control_, network_, address, std::move(layout), clock_));
    options_.replicas.push_back(address);
    return *engines_.back();
  }
  void UseTrainer(int ranks, std::int64_t rows = 24) { trainer_ = std::make_unique<ShardedTrainer>(ranks, rows); }

  WeightPublisher& MakePublisher() {
    options_.control = control_dialer_;
    options_.transports = {route_dialer_};
    options_.clock = &clock_;
    auto made = WeightPublisher::Create(options_, trainer_->Source());
    CHECK(made.ok());
    publisher_ = std::move(*made);
    return *publisher_;
  }

  std::shared_ptr<PublishHandle> Begin(PublishRequest request = {}) {
    auto handle = publisher_->Publish(std::move(request));
    CHECK(handle.ok());
    return *handle;
  }
  PublishReport Publish(PublishRequest request = {}) {
    auto report = Begin(std::move(request))->WaitCommitted(Soon());
    CHECK(report.ok());
    return *report;
  }
  // As the clock of the publisher goes.
  Deadline Soon() const { return Deadline::After(clock_, std::chrono::seconds(100)); }

  void ExpectEngineHoldsTrainersTensors(const ScriptedEngine& engine, int engine_ranks) const {
    const std::size_t tensors = ShardedTrainer::WireTensors().size();
    for (int rank = 0; rank < engine_ranks; ++rank) {
      for (std::size_t t = 0; t < tensors; ++t) {
        EXPECT_EQ(engine.Live(rank, static_cast<int>(t)),
                  trainer_->EngineBytes(engine_ranks, rank, static_cast<int>(t)))
            << "engine rank " << rank << " tensor " << t;
      }
    }
  }
  Hash256 ExpectedDigest() const {
    return OracleVersionDigest(ShardedTrainer::WireTensors(trainer_->Rows()), trainer_->WireBytes());
  }

  Clock& clock_;
  LoopbackControl control_;
  LoopbackNetwork network_;
  LoopbackDialer dialer_;
  ControlDialer* control_dialer_ = &control_;  // what publishers use
  TransportDialer* route_dialer_ = &dialer_;
  WeightPublisherOptions options_{.bucket_bytes = 4096};
  std::unique_ptr<ShardedTrainer> trainer_ = std::make_unique<ShardedTrainer>(/*trainer_ranks=*/2);
  std::vector<std::unique_ptr<ScriptedEngine>> engines_;
  std::unique_ptr<WeightPublisher> publisher_;  // last: its connections go first
};

// Before the fixture among its bases: the clock outlives every thread that looks at it.
struct FakeClockOwner {
  FakeClock fake_clock_;
};

// The same with a time that stands until a test moves it.
class TimedPublisherFixture : protected FakeClockOwner, public PublisherFixture {
 protected:
  TimedPublisherFixture() : PublisherFixture(fake_clock_) {
    options_.deadline = std::chrono::seconds(3);
    options_.connect_timeout = std::chrono::seconds(2);
  }

  // Lets time pass until the publish has ended.
  PublishReport AdvanceUntilEnded(PublishHandle& handle) {
    const auto ended = [&] { return !publisher_->status().publishing; };
    while (!Eventually(ended, Deadline::After(Clock::Real(), std::chrono::milliseconds(20)))) {
      fake_clock_.Advance(std::chrono::milliseconds(500));
    }
    auto report = handle.WaitCommitted(Soon());
    CHECK(report.ok());
    return *report;
  }
};

}  // namespace bascule
