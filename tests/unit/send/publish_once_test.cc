#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "bridge/send/publish_session.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "tests/support/process_census.h"
#include "tests/support/scripted_engine/digest_oracle.h"
#include "tests/support/scripted_engine/scripted_engine.h"
#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule {
namespace {

using testing::HasSubstr;

class PublishOnceTest : public testing::Test {
 protected:
  SendReport Publish(VersionOffer offer, std::stop_token stop = {}, std::string address = "engine") {
    return PublishOnce(
        source_,
        {.address = std::move(address), .control = &control_, .transports = {&dialer_}, .plan = {.bucket_bytes = 4096}},
        std::move(offer), Deadline::After(Clock::Real(), std::chrono::seconds(60)), std::move(stop));
  }

  LoopbackControl control_;
  LoopbackNetwork network_;
  LoopbackDialer dialer_{network_};
  ShardedTrainer trainer_{/*trainer_ranks=*/1};
  const TensorSource source_ = trainer_.Source();
  ScriptedEngine engine_{control_, network_, "engine", ShardedTrainer::EngineLayout(/*engine_ranks=*/2)};
};

TEST_F(PublishOnceTest, AnEngineLoadsItsFirstVersionThroughTheSamePath) {
  engine_.SetLive({});

  const SendReport report = Publish({.run = "checkpoint", .number = 0, .new_run = true});

  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.version,
            (WeightVersion{.run = "checkpoint",
                           .number = 0,
                           .digest = OracleVersionDigest(ShardedTrainer::WireTensors(), trainer_.WireBytes())}));
  EXPECT_EQ(engine_.live(), report.version);
  EXPECT_EQ(engine_.Live(1, 2), trainer_.EngineBytes(2, 1, 2));
  EXPECT_EQ(report.phase, SendPhase::kFlip);
}

TEST_F(PublishOnceTest, DigestsThatAreOnRecordAreSealedWhateverTheSourceHolds) {
  engine_.SetLive({});
  const TensorDigest recorded{{1, 2, 3, 4}};

  const SendReport report = Publish({.run = "checkpoint",
                                     .number = 0,
                                     .new_run = true,
                                     .recorded = {{ShardedTrainer::WireTensors()[1].name, recorded}}});

  const ManifestSeal seal = engine_.account().seals.back();
  EXPECT_EQ(seal.digests[1], recorded);
  EXPECT_NE(seal.digests[0], recorded);
  EXPECT_EQ(seal.version_digest, VersionDigestOf(ShardedTrainer::WireTensors(), seal.digests));
  EXPECT_EQ(report.version.digest, seal.version_digest);
}

TEST_F(PublishOnceTest, TheConnectionIsGoneAfterwards) {
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first
  const std::size_t threads = RunningThreads();

  ASSERT_TRUE(Publish({.run = "base", .number = 1}).status.ok());

  // The engine's end of the connection is over too once its thread has seen it.
  EXPECT_TRUE(Eventually([&] { return RunningThreads() <= threads; },
                         Deadline::After(Clock::Real(), std::chrono::seconds(30))));
}

TEST_F(PublishOnceTest, AFailureNamesThePhaseAndThePeer) {
  engine_.Play({.step = EngineStep::kSeal, .deed = EngineDeed::kAbort});

  const SendReport report = Publish({.run = "base", .number = 1});

  EXPECT_EQ(report.status.reason(), "scripted");
  EXPECT_EQ(report.phase, SendPhase::kVerify);
  EXPECT_THAT(report.status.message(), HasSubstr("replica engine, verify"));
}

// A source whose third box cannot be read, as on a disk that fails.
class BrokenSource final : public WeightSource {
 public:
  explicit BrokenSource(const WeightSource& whole) : whole_(whole) {}
  const Layout& layout() const override { return whole_.layout(); }
  const std::byte* Base(int sender_rank, int tensor) const override { return whole_.Base(sender_rank, tensor); }
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override {
    class Reader final : public BoxReader {
     public:
      explicit Reader(std::unique_ptr<BoxReader> whole) : whole_(std::move(whole)) {}
      Result<BoxView> Next() override {
        if (++read_ < 3) return whole_->Next();
        return Status::Unavailable("read_failed", "m.safetensors: offset=4096: Input/output error");
      }

     private:
      const std::unique_ptr<BoxReader> whole_;
      int read_ = 0;
    };
    return std::make_unique<Reader>(whole_.Read(std::move(boxes)));
  }

 private:
  const WeightSource& whole_;
};

TEST_F(PublishOnceTest, ASourceThatCannotBeReadEndsThePublishWithItsOwnReasonAndNothingGoesLive) {
  const BrokenSource broken(source_);
  const WeightVersion before = engine_.live();

  const SendReport report = PublishOnce(
      broken, {.address = "engine", .control = &control_, .transports = {&dialer_}, .plan = {.bucket_bytes = 4096}},
      {.run = "base", .number = 1}, Deadline::After(Clock::Real(), std::chrono::seconds(60)), {});

  EXPECT_EQ(report.status.reason(), "read_failed");
  EXPECT_THAT(report.status.message(), HasSubstr("m.safetensors: offset=4096"));
  EXPECT_EQ(report.phase, SendPhase::kSend);
  EXPECT_EQ(engine_.live(), before);
  EXPECT_TRUE(engine_.account().seals.empty());
}

TEST_F(PublishOnceTest, APublishThatIsStoppedBeforeItBeginsOffersNothing) {
  std::stop_source stop;
  stop.request_stop();

  const SendReport report = Publish({.run = "base", .number = 1}, stop.get_token());

  EXPECT_EQ(report.status.reason(), "cancelled");
  EXPECT_TRUE(engine_.account().offers.empty());
}

TEST_F(PublishOnceTest, AnswersToHelloThatHaveNoPlaceThereAreRefused) {
  const std::pair<SessionMessage, std::string> answers[] = {
      {Accept{}, "unexpected_message"},
      {Abort{}, "unexpected_message"},  // without an error it says nothing
      {HelloReply{.wire_version = kWireVersion + 1, .max_credits = 1}, "wire_version"},
      {HelloReply{.max_credits = 0}, "bad_message"},
      {HelloReply{.max_credits = 1}, "transport_unavailable"},
      {HelloReply{.endpoints = {{TransportKind::kLoopback, "engine"}}, .max_credits = 1}, "tensor_unexpected"}};
  for (const auto& [answer, reason] : answers) {
    auto listener = control_.Listen("rogue", [&answer = answer](ControlChannel& channel) {
      const Deadline deadline = Deadline::After(Clock::Real(), std::chrono::seconds(60));
      while (channel.Receive(deadline).ok()) {
        if (!channel.Send(answer).ok()) return;
      }
    });
    ASSERT_TRUE(listener.ok());

    const SendReport report = Publish({.run = "base", .number = 1}, {}, "rogue");

    EXPECT_EQ(report.status.reason(), reason) << report.status.ToString();
  }
}

TEST_F(PublishOnceTest, AnEngineThatGoesBeforeItsRoutesAreDialledIsLostAndDoesNotRefuseThem) {
  const auto listener = control_.Listen("leaving", [](ControlChannel& channel) {
    const Deadline deadline = Deadline::After(Clock::Real(), std::chrono::seconds(60));
    if (!channel.Receive(deadline).ok()) return;
    // Routes are dialled where another engine listens, which refuses a connection that it does not know.
    const HelloReply reply{.engine_layout = ShardedTrainer::EngineLayout(/*engine_ranks=*/2),
                           .live = {.run = "base", .number = 0, .digest = {}},
                           .endpoints = {{TransportKind::kLoopback, "engine"}},
                           .connection = 12345,
                           .max_credits = 4};
    if (!channel.Send(reply).ok()) return;
    const Result<SessionMessage> offer = channel.Receive(deadline);
    if (offer.ok()) (void)channel.Send(Accept{.session = std::get<Offer>(*offer).session});
  });
  ASSERT_TRUE(listener.ok());

  const SendReport report = Publish({.run = "base", .number = 1}, {}, "leaving");

  EXPECT_EQ(report.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(report.status.reason(), "peer_lost");
  EXPECT_EQ(report.phase, SendPhase::kSend);
}

}  // namespace
}  // namespace bascule
