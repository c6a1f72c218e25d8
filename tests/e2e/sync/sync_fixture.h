// A publisher and a receiver that decodes nothing, each as it ships, in one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "engine_side/weight_receiver.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/scripted_engine/digest_oracle.h"
#include "tests/support/scripted_engine/sharded_trainer.h"
#include "tests/support/temp_directory.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

inline constexpr std::int64_t kRows = 200;  // several buckets on each route

class SyncFixture : public testing::Test {
 protected:
  ~SyncFixture() override {
    publisher_.reset();
    serving_.reset();
    receiver_.reset();
    listener_.reset();
  }

  // An address is free again once who listened there is gone.
  void StopListening() {
    listener_.reset();
    inner_listener_.reset();
  }
  void UseLoopback() {
    StopListening();
    listener_ = *LoopbackListener::Create(network_, "engine");
    dialer_ = std::make_unique<LoopbackDialer>(network_);
  }
  void UseShm() {
    StopListening();
    listener_ = *ShmListener::Create(directory_.File("engine"));
    dialer_ = std::make_unique<ShmDialer>();
  }
  void Damage(FaultPlan frames_sent, FaultPlan frames_received = {}) {
    inner_dialer_ = std::move(dialer_);
    dialer_ = std::make_unique<FaultyDialer>(*inner_dialer_, std::move(frames_sent));
    inner_listener_ = std::move(listener_);
    listener_ = std::make_unique<FaultyListener>(*inner_listener_, std::move(frames_received));
  }

  void StartEngine(int engine_ranks) {
    receiver_options_.layout = ShardedTrainer::EngineLayout(engine_ranks, kRows);
    receiver_options_.listeners = {listener_.get()};
    receiver_ = *WeightReceiver::Create(receiver_options_, hooks_);
    serving_ =
        *control_.Listen("engine", [this](ControlChannel& channel) { static_cast<void>(receiver_->Serve(channel)); });
  }
  void StopEngine() {
    receiver_.reset();
    serving_.reset();
  }
  void Configure() {
    options_.connect_timeout = std::chrono::minutes(1);  // a slow machine is no fault
    options_.replicas = {"engine"};
    options_.control = &control_;
    options_.transports = {dialer_.get()};
  }
  void StartTrainer(int trainer_ranks) {
    trainer_ = std::make_unique<ShardedTrainer>(trainer_ranks, kRows);
    Configure();
    publisher_ = *WeightPublisher::Create(options_, trainer_->Source());
  }

  PublishReport Publish(PublishRequest request = {}) {
    auto report = (*publisher_->Publish(std::move(request)))
                      ->WaitCommitted(Deadline::After(Clock::Real(), std::chrono::minutes(2)));
    CHECK(report.ok());
    return *report;
  }
  // The trainer's version is live, by every account there is.
  void ExpectLive(const PublishReport& report) {
    EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
    EXPECT_EQ(report.version.digest, OracleVersionDigest(ShardedTrainer::WireTensors(kRows), trainer_->WireBytes()));
    EXPECT_EQ(receiver_->status().live, report.version);
    const std::vector<TensorSpec> tensors = ShardedTrainer::WireTensors(kRows);
    const std::vector<std::vector<std::byte>> bytes = trainer_->WireBytes();
    const auto live = receiver_->DigestLive();
    ASSERT_TRUE(live.ok());
    EXPECT_TRUE(live->replica_differences.empty());
    for (std::size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(live->totals[t], OracleDigest(tensors[t], bytes[t]));
  }

  LoopbackControl control_;
  LoopbackNetwork network_;
  const TempDirectory directory_;
  IdleHooks hooks_;
  std::unique_ptr<TransportListener> inner_listener_;
  std::unique_ptr<TransportListener> listener_;
  std::unique_ptr<TransportDialer> inner_dialer_;
  std::unique_ptr<TransportDialer> dialer_;
  WeightReceiverOptions receiver_options_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> serving_;
  WeightPublisherOptions options_{.run = "run", .bucket_bytes = 4096};
  std::unique_ptr<ShardedTrainer> trainer_;
  std::unique_ptr<WeightPublisher> publisher_;
};

}  // namespace bascule
