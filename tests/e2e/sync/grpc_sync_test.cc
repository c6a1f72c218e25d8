// The same two ends with gRPC between them.
#include "base/grpc/grpc_server.h"
#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"
#include "tests/e2e/sync/sync_fixture.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

class GrpcSyncTest : public SyncFixture {
 protected:
  ~GrpcSyncTest() override {
    publisher_.reset();
    server_.reset();
    receiver_.reset();
    listener_.reset();
  }

  void StartEngine(int engine_ranks) {
    receiver_options_.layout = ShardedTrainer::EngineLayout(engine_ranks, kRows);
    receiver_options_.listeners = {listener_.get()};
    receiver_ = *WeightReceiver::Create(receiver_options_, hooks_);
  }
  void StartTrainer(int trainer_ranks) {
    options_.connect_timeout = std::chrono::minutes(1);  // a slow machine is no fault
    trainer_ = std::make_unique<ShardedTrainer>(trainer_ranks, kRows);
    options_.replicas = {server_->address()};
    options_.control = &dialer_of_control_;
    options_.transports = {dialer_.get()};
    publisher_ = *WeightPublisher::Create(options_, trainer_->Source());
  }
  bool EventuallyReceives() {
    return Eventually(
        [&] {
          const ReceiverStatus status = receiver_->status();
          return status.session && status.session->state == SessionState::kReceiving;
        },
        Soon());
  }
  Deadline Soon() const { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

  GrpcControlDialer dialer_of_control_;
  GrpcControlService service_{[this](ControlChannel& channel) { static_cast<void>(receiver_->Serve(channel)); }};
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(GrpcSyncTest, EveryVersionGoesLiveWithTheDigestOfTheTrainersTensors) {
  auto listener = std::make_unique<GrpcListener>();
  server_ = *GrpcServer::Start("127.0.0.1:0", {service_.service(), &listener->service()});
  listener->SetAddress(server_->address());
  listener_ = std::move(listener);
  dialer_ = std::make_unique<GrpcDialer>();
  StartEngine(/*engine_ranks=*/2);
  StartTrainer(/*trainer_ranks=*/2);

  for (std::uint32_t step = 1; step <= 2; ++step) {
    trainer_->Fill(step);
    ExpectLive(Publish());
  }
}

TEST_F(GrpcSyncTest, TheReasonOfACancelledPublishReachesTheEngine) {
  UseLoopback();
  // No frame gets through, so that the publish waits in its send phase.
  Damage({}, {.frames = {{.kind = FaultKind::kHold, .at = 0, .behind = 1'000'000, .at_most = std::chrono::hours(1)}}});
  options_.credits = 1;
  server_ = *GrpcServer::Start("127.0.0.1:0", {service_.service()});
  StartEngine(1);
  StartTrainer(1);
  const auto handle = *publisher_->Publish({});
  ASSERT_TRUE(EventuallyReceives());

  publisher_->Cancel();
  const auto report = handle->WaitCommitted(Soon());

  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->replicas[0].status.reason(), "cancelled");
  ASSERT_TRUE(Eventually([&] { return !receiver_->History().empty(); }, Soon()));
  EXPECT_EQ(receiver_->History()[0].why.reason(), "cancelled") << receiver_->History()[0].why.ToString();
}

TEST_F(GrpcSyncTest, AnEngineThatGoesIsNamedAtOnceWithThePhase) {
  UseLoopback();
  Damage({}, {.frames = {{.kind = FaultKind::kHold, .at = 0, .behind = 1'000'000, .at_most = std::chrono::hours(1)}}});
  options_.credits = 1;
  options_.deadline = std::chrono::hours(1);
  server_ = *GrpcServer::Start("127.0.0.1:0", {service_.service()});
  StartEngine(1);
  StartTrainer(1);
  const auto handle = *publisher_->Publish({});
  ASSERT_TRUE(EventuallyReceives());

  server_->Stop(Duration::zero());
  const auto report = handle->WaitCommitted(Soon());

  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->replicas[0].status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(report->replicas[0].status.message(), testing::HasSubstr("replica " + server_->address()));
}

}  // namespace
}  // namespace bascule
