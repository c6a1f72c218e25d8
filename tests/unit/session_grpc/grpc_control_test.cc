#include "bridge/session/grpc/grpc_control.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <functional>

#include "bascule/v1/session.pb.h"
#include "bascule/v1/weight_sync.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/worker.h"
#include "bridge/session/grpc/session_codec.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// A server whose handler the test gives.
class GrpcControlTest : public ::testing::Test {
 protected:
  void Serve(ControlHandler handler) {
    service_ = std::make_unique<GrpcControlService>(std::move(handler));
    server_ = *GrpcServer::Start("127.0.0.1:0", {service_->service()});
  }
  std::unique_ptr<ControlChannel> Dial() { return *dialer_.Dial(server_->address(), Soon()); }

  std::unique_ptr<GrpcControlService> service_;
  std::unique_ptr<GrpcServer> server_;
  GrpcControlDialer dialer_;
};

void Echo(ControlChannel& channel) {
  while (true) {
    const Result<SessionMessage> message = channel.Receive(Soon());
    if (!message.ok() || !channel.Send(*message).ok()) return;
  }
}

TEST_F(GrpcControlTest, MessagesArriveInOrderInBothDirections) {
  Serve(Echo);
  auto channel = Dial();

  for (std::uint64_t i = 1; i <= 20; ++i) ASSERT_TRUE(channel->Send(Accept{SessionId{i}}).ok());

  for (std::uint64_t i = 1; i <= 20; ++i) {
    const Result<SessionMessage> message = channel->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status().ToString();
    EXPECT_EQ(std::get<Accept>(*message).session, SessionId{i});
  }
}

// C-041.
TEST_F(GrpcControlTest, AManifestOfFortyThousandLongNamesTravels) {
  Serve(Echo);
  auto channel = Dial();
  Offer offer;
  offer.manifest.sender_layout.bytes[0] = std::byte{1};
  for (int i = 0; i < 40'000; ++i) {
    const std::string number = std::to_string(i);
    offer.manifest.tensors.push_back({std::string(200 - number.size(), 'n') + number, DType::kBf16, {48, 64}});
  }

  ASSERT_TRUE(channel->Send(offer).ok());
  const Result<SessionMessage> back = channel->Receive(Soon());

  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(std::get<Offer>(*back).manifest, offer.manifest);
}

// C-041.
TEST_F(GrpcControlTest, AnErrorTextOf64KiBTravelsWhole) {
  Serve(Echo);
  auto channel = Dial();
  const Status why = Status::FailedPrecondition("wrong_model", std::string(64 << 10, 'x'));

  ASSERT_TRUE(channel->Send(Abort{SessionId{1}, why}).ok());

  EXPECT_EQ(std::get<Abort>(*channel->Receive(Soon())).why, why);
}

// C-041.
TEST_F(GrpcControlTest, AMessageBeyondTheBoundIsRefusedBeforeItIsSent) {
  Serve(Echo);
  auto channel = Dial();
  Abort abort{SessionId{1}, Status::DataLoss("reason", std::string(kMaxSessionMessageBytes, 'x'))};

  EXPECT_EQ(channel->Send(abort).reason(), "bad_message");

  ASSERT_TRUE(channel->Send(Accept{SessionId{1}}).ok());
  EXPECT_TRUE(channel->Receive(Soon()).ok());
}

TEST_F(GrpcControlTest, WhatTheServerSaidLastArrivesBeforeItsEnd) {
  Serve([](ControlChannel& channel) {
    EXPECT_TRUE(channel.Send(Abort{SessionId{}, Status::FailedPrecondition("wire_version")}).ok());
  });
  auto channel = Dial();

  EXPECT_EQ(std::get<Abort>(*channel->Receive(Soon())).why.reason(), "wire_version");
  EXPECT_EQ(channel->Receive(Soon()).status().reason(), "peer_lost");
  EXPECT_EQ(channel->Send(Accept{}).reason(), "peer_lost");
}

TEST_F(GrpcControlTest, WhatTheClientSaidLastArrivesBeforeItsEnd) {
  std::vector<std::string> seen;
  Serve([&](ControlChannel& channel) {
    const Result<SessionMessage> message = channel.Receive(Soon());
    seen.push_back(message.ok() ? std::string(MessageName(*message)) : message.status().reason());
    seen.push_back(channel.Receive(Soon()).status().reason());
  });
  {
    auto channel = Dial();
    ASSERT_TRUE(channel->Send(Flip{SessionId{1}}).ok());
  }
  server_->Stop(std::chrono::seconds(30));

  EXPECT_THAT(seen, ::testing::ElementsAre("Flip", "peer_lost"));
}

TEST_F(GrpcControlTest, CancelWakesAReceiverAtBothEnds) {
  std::string at_server;
  Serve([&](ControlChannel& channel) {
    const Result<SessionMessage> first = channel.Receive(Soon());
    if (first.ok()) static_cast<void>(channel.Send(*first));
    at_server = channel.Receive(Soon()).status().reason();
  });
  auto channel = Dial();
  // A call that ends before the server has heard of it never gets there.
  ASSERT_TRUE(channel->Send(Flip{SessionId{1}}).ok());
  ASSERT_TRUE(channel->Receive(Soon()).ok());
  Status at_client;
  {
    Worker waiter("waiter", [&](std::stop_token) { at_client = channel->Receive(Soon()).status(); });
    channel->Cancel();
  }
  channel.reset();
  server_->Stop(std::chrono::seconds(30));

  EXPECT_EQ(at_client.reason(), "cancelled");
  EXPECT_EQ(at_server, "peer_lost");
}

TEST_F(GrpcControlTest, AReceiveEndsAtItsDeadlineAndTheChannelGoesOn) {
  Serve(Echo);
  auto channel = Dial();

  EXPECT_EQ(channel->Receive(Deadline::After(Clock::Real(), std::chrono::milliseconds(1))).status().reason(),
            "deadline");

  ASSERT_TRUE(channel->Send(Accept{SessionId{1}}).ok());
  EXPECT_TRUE(channel->Receive(Soon()).ok());
}

TEST_F(GrpcControlTest, AServerThatStopsIsALostPeer) {
  Serve(Echo);
  auto channel = Dial();

  server_->Stop(Duration::zero());

  EXPECT_EQ(channel->Receive(Soon()).status().code(), StatusCode::kUnavailable);
}

TEST_F(GrpcControlTest, AServerWithoutTheServiceSaysSo) {
  auto server = *GrpcServer::Start("127.0.0.1:0", {});
  auto channel = *dialer_.Dial(server->address(), Soon());

  EXPECT_EQ(channel->Receive(Soon()).status().reason(), "wrong_service");
}

TEST_F(GrpcControlTest, WhereNobodyListensTheDialFailsAtOnce) {
  EXPECT_EQ(dialer_.Dial("127.0.0.1:1", Soon()).status().reason(), "peer_unreachable");
  EXPECT_EQ(dialer_.Dial("nonsense", Soon()).status().reason(), "bad_address");
}

// A client that speaks frames by hand.
class RawClient {
 public:
  explicit RawClient(const std::string& address)
      : channel_(*MakeGrpcChannel(address)),
        stub_(v1::WeightSync::NewStub(channel_)),
        stream_(stub_->Connect(&context_)) {}
  ~RawClient() {
    context_.TryCancel();
    (void)stream_->Finish();
  }
  void Write(const std::string& data, bool last) {
    v1::SessionFrame frame;
    frame.set_data(data);
    frame.set_last(last);
    stream_->Write(frame);
  }
  std::string Read() {
    v1::SessionFrame frame;
    return stream_->Read(&frame) ? frame.data() : "";
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::WeightSync::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionFrame, v1::SessionFrame>> stream_;
};

// C-047.
TEST_F(GrpcControlTest, BytesThatAreNoMessageAreReportedAndAnswersStillGoOut) {
  std::string reason;
  Serve([&](ControlChannel& channel) {
    const Status status = channel.Receive(Soon()).status();
    reason = status.reason();
    EXPECT_TRUE(channel.Send(Abort{SessionId{}, status}).ok());
  });
  RawClient client(server_->address());

  client.Write("\xff\xff no protobuf", true);

  EXPECT_EQ(std::get<Abort>(*DecodeSessionMessage(client.Read())).why.reason(), "bad_message");
  EXPECT_EQ(reason, "bad_message");
}

TEST_F(GrpcControlTest, AMessageThatNeverEndsIsCutOffAtTheBound) {
  std::string reason;
  Serve([&](ControlChannel& channel) {
    const Status status = channel.Receive(Soon()).status();
    reason = status.reason();
    EXPECT_TRUE(channel.Send(Abort{SessionId{}, status}).ok());
  });
  RawClient client(server_->address());
  const std::string megabyte(1 << 20, 'x');

  for (std::size_t sent = 0; sent <= kMaxSessionMessageBytes; sent += megabyte.size()) client.Write(megabyte, false);

  EXPECT_EQ(std::get<Abort>(*DecodeSessionMessage(client.Read())).why.reason(), "bad_message");
  EXPECT_EQ(reason, "bad_message");
}

TEST_F(GrpcControlTest, ConnectionsLeaveNoThreadAndNoDescriptorBehind) {
  Serve(Echo);
  const auto round = [&] {
    auto channel = Dial();
    ASSERT_TRUE(channel->Send(Accept{SessionId{1}}).ok());
    ASSERT_TRUE(channel->Receive(Soon()).ok());
  };
  for (int i = 0; i < 10; ++i) round();
  const std::size_t descriptors = OpenDescriptors();
  const std::size_t threads = RunningThreads();

  for (int i = 0; i < 50; ++i) round();

  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors && RunningThreads() <= threads; }, Soon()));
}

}  // namespace
}  // namespace bascule
