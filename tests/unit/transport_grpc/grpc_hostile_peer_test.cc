// A peer that speaks bascule.v1.Transfer through protobuf's own stub, and badly.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "bascule/v1/transfer.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/grpc/grpc_status.h"
#include "bridge/transport/grpc/dialer.h"
#include "bridge/transport/grpc/listener.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

constexpr RouteHello kHello{.connection = 1, .route = {0, 0}, .frame_bytes = 1000, .credits = 2};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

v1::Frame HelloOf(std::uint64_t connection, std::int64_t frame_bytes, std::int32_t credits) {
  v1::Frame frame;
  frame.mutable_hello()->set_connection(connection);
  frame.mutable_hello()->set_frame_bytes(frame_bytes);
  frame.mutable_hello()->set_credits(credits);
  return frame;
}

v1::Frame Piece(std::uint32_t index, std::uint64_t frame_bytes, std::string piece) {
  v1::Frame frame;
  frame.set_index(index);
  frame.set_frame_bytes(frame_bytes);
  frame.set_piece(std::move(piece));
  return frame;
}

class GrpcHostileSenderTest : public testing::Test {
 protected:
  GrpcHostileSenderTest() { listener_.Expect(1); }

  void Call() {
    context_.set_deadline(GrpcDeadline(Soon(), Clock::Real()));
    stream_ = stub_->Route(&context_);
  }

  // Opens a route as it should be; what follows is up to the test.
  void OpenRoute() {
    Call();
    ASSERT_TRUE(stream_->Write(HelloOf(1, 1000, 2)));
    v1::Ack opened;
    ASSERT_TRUE(stream_->Read(&opened));
    ASSERT_TRUE(opened.has_opened());
    receiver_ = listener_.Accept(1, Route{0, 0}, Soon()).value();
  }

  // How the listener ended the call.
  Status EndOfCall() {
    v1::Ack ack;
    while (stream_->Read(&ack)) continue;
    return FromGrpc(stream_->Finish());
  }

  void ExpectBroken() {
    const Status status = receiver_->Receive(Soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.reason(), "bad_frame");
    EXPECT_EQ(EndOfCall().reason(), "bad_frame");
    EXPECT_TRUE(AnotherRouteOpens());
  }

  bool AnotherRouteOpens() {
    RouteHello other = kHello;
    other.route = {1, 1};
    return GrpcDialer().Dial(listener_.endpoint(), other, Soon()).ok();
  }

  GrpcListener listener_;
  std::unique_ptr<GrpcServer> server_ = [this] {
    auto server = GrpcServer::Start("127.0.0.1:0", {&listener_.service()}).value();
    listener_.SetAddress(server->address());
    return server;
  }();
  std::unique_ptr<v1::Transfer::Stub> stub_ = v1::Transfer::NewStub(MakeGrpcChannel(server_->address()).value());
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Ack>> stream_;
  std::unique_ptr<BucketReceiver> receiver_;
};

TEST_F(GrpcHostileSenderTest, AFrameBeforeTheHelloIsRefused) {
  Call();
  ASSERT_TRUE(stream_->Write(Piece(0, 3, "abc")));

  EXPECT_EQ(EndOfCall().reason(), "bad_route");
}

TEST_F(GrpcHostileSenderTest, HostileNumbersInAHelloAreRefused) {
  Call();
  ASSERT_TRUE(stream_->Write(HelloOf(1, std::int64_t{1} << 62, 1 << 30)));

  const Status status = EndOfCall();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.reason(), "bad_route");
  EXPECT_TRUE(AnotherRouteOpens());
}

TEST_F(GrpcHostileSenderTest, AnUnknownConnectionIsRefused) {
  Call();
  ASSERT_TRUE(stream_->Write(HelloOf(2, 1000, 2)));

  EXPECT_EQ(EndOfCall().reason(), "unknown_connection");
}

TEST_F(GrpcHostileSenderTest, ASenderThatOnlyConnectsIsForgottenWhenItGoes) {
  Call();
  stream_->WritesDone();

  EXPECT_EQ(EndOfCall().reason(), "peer_lost");
}

TEST_F(GrpcHostileSenderTest, PiecesOfProtobufMakeAFrame) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(1, 6, "abc")));
  ASSERT_TRUE(stream_->Write(Piece(1, 6, "def")));

  const Result<ReceivedFrame> frame = receiver_->Receive(Soon());

  ASSERT_TRUE(frame.ok()) << frame.status().ToString();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(frame->bytes.data()), frame->bytes.size()), "abcdef");
  ASSERT_TRUE(receiver_->Acknowledge(*frame, {.bucket = 9, .attempt = 1, .verdict = BucketVerdict::kDamaged}).ok());
  v1::Ack ack;
  ASSERT_TRUE(stream_->Read(&ack));
  EXPECT_EQ(ack.frame().index(), 1U);
  EXPECT_EQ(ack.frame().bucket(), 9U);
  EXPECT_EQ(ack.frame().attempt(), 1U);
  EXPECT_EQ(ack.frame().verdict(), v1::FrameAck::VERDICT_DAMAGED);
}

TEST_F(GrpcHostileSenderTest, AFrameThatDoesNotExistEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(2, 3, "abc")));
  ExpectBroken();
}

TEST_F(GrpcHostileSenderTest, AFrameLargerThanAgreedEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(0, 1001, "abc")));
  ExpectBroken();
}

TEST_F(GrpcHostileSenderTest, AFrameSentTwiceEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(0, 3, "abc")));
  ASSERT_TRUE(receiver_->Receive(Soon()).ok());
  ASSERT_TRUE(stream_->Write(Piece(0, 3, "abc")));
  ExpectBroken();
}

TEST_F(GrpcHostileSenderTest, AFrameInsideAnotherEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(0, 6, "abc")));
  ASSERT_TRUE(stream_->Write(Piece(1, 6, "def")));
  ExpectBroken();
}

TEST_F(GrpcHostileSenderTest, MoreBytesThanTheFrameHasEndTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(0, 6, "abc")));
  ASSERT_TRUE(stream_->Write(Piece(0, 6, "defg")));
  ExpectBroken();
}

TEST_F(GrpcHostileSenderTest, APieceWithoutBytesEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(Piece(0, 6, "")));
  ExpectBroken();
}

TEST_F(GrpcHostileSenderTest, ASecondHelloEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(stream_->Write(HelloOf(1, 1000, 2)));
  ExpectBroken();
}

// An engine that answers by hand.
class ScriptedTransfer final : public v1::Transfer::Service {
 public:
  explicit ScriptedTransfer(std::vector<v1::Ack> acks) : acks_(std::move(acks)) {}
  grpc::Status Route(grpc::ServerContext*, grpc::ServerReaderWriter<v1::Ack, v1::Frame>* stream) override {
    v1::Frame frame;
    stream->Read(&frame);
    for (const v1::Ack& ack : acks_) stream->Write(ack);
    while (stream->Read(&frame)) continue;
    return grpc::Status::OK;
  }

 private:
  const std::vector<v1::Ack> acks_;
};

v1::Ack Opened() {
  v1::Ack ack;
  ack.mutable_opened();
  return ack;
}

v1::Ack AckOf(std::uint32_t index, v1::FrameAck::Verdict verdict) {
  v1::Ack ack;
  ack.mutable_frame()->set_index(index);
  ack.mutable_frame()->set_verdict(verdict);
  return ack;
}

// What NextAck says when, after one frame was sent, the engine has answered with `acks`.
Status NextAckAfter(std::vector<v1::Ack> acks) {
  ScriptedTransfer service(std::move(acks));
  const auto server = GrpcServer::Start("127.0.0.1:0", {&service}).value();
  Result<std::unique_ptr<BucketSender>> sender =
      GrpcDialer().Dial({TransportKind::kGrpc, server->address()}, kHello, Soon());
  if (!sender.ok()) return sender.status();
  (*sender)->Acquire();
  RETURN_IF_ERROR((*sender)->Send(10));
  const Status status = (*sender)->NextAck(Soon()).status();
  if (status.ok()) return status;
  EXPECT_EQ((*sender)->NextAck(Soon()).status(), status) << "the first error lasts";
  return status;
}

TEST(GrpcHostileReceiverTest, AcknowledgementsThatCannotBeEndTheRoute) {
  EXPECT_TRUE(NextAckAfter({Opened(), AckOf(0, v1::FrameAck::VERDICT_GOOD)}).ok());
  EXPECT_EQ(NextAckAfter({Opened(), AckOf(1, v1::FrameAck::VERDICT_GOOD)}).reason(), "bad_ack");
  EXPECT_EQ(NextAckAfter({Opened(), AckOf(0xffffffff, v1::FrameAck::VERDICT_GOOD)}).reason(), "bad_ack");
  EXPECT_EQ(NextAckAfter({Opened(), AckOf(0, v1::FrameAck::VERDICT_UNSPECIFIED)}).reason(), "bad_ack");
}

TEST(GrpcHostileReceiverTest, AnAddressWithoutTheServiceSaysSo) {
  const auto server = GrpcServer::Start("127.0.0.1:0", {}).value();

  const Status status = GrpcDialer().Dial({TransportKind::kGrpc, server->address()}, kHello, Soon()).status();

  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
}

TEST(GrpcHostileReceiverTest, AnEngineThatNeverAnswersIsADeadline) {
  ScriptedTransfer service({});
  const auto server = GrpcServer::Start("127.0.0.1:0", {&service}).value();

  const Status status = GrpcDialer()
                            .Dial({TransportKind::kGrpc, server->address()}, kHello,
                                  Deadline::After(Clock::Real(), std::chrono::milliseconds(50)))
                            .status();

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

// C-040: variables of a cluster's environment do not send our traffic to a proxy.
TEST(GrpcTransportTest, ProxyVariablesAreIgnored) {
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) setenv(name, "http://127.0.0.1:1", 1);
  GrpcListener listener;
  const auto server = GrpcServer::Start("127.0.0.1:0", {&listener.service()}).value();
  listener.SetAddress(server->address());
  listener.Expect(1);

  EXPECT_TRUE(GrpcDialer().Dial(listener.endpoint(), kHello, Soon()).ok());

  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) unsetenv(name);
}

// gRPC ends the threads of its callbacks with the last channel that uses them, and aborts the process when one of them
// holds that channel: whoever lets go of a call last must be a thread of ours.
TEST(GrpcTransportTest, RoutesThatEndAsSoonAsTheyAreOpenNeverLeaveTheirChannelToAThreadOfGrpc) {
  GrpcListener listener;
  const auto server = GrpcServer::Start("127.0.0.1:0", {&listener.service()}).value();
  listener.SetAddress(server->address());
  for (std::uint64_t connection = 1; connection <= 400; ++connection) {
    listener.Expect(connection);
    RouteHello hello = kHello;
    hello.connection = connection;

    ASSERT_TRUE(GrpcDialer().Dial(listener.endpoint(), hello, Soon()).ok());

    listener.Forget(connection);
  }
}

TEST(GrpcTransportTest, AFrameLargerThanAMessageTravelsInPieces) {
  GrpcListener listener;
  const auto server = GrpcServer::Start("127.0.0.1:0", {&listener.service()}).value();
  listener.SetAddress(server->address());
  listener.Expect(1);
  RouteHello hello = kHello;
  hello.frame_bytes = 2 * kGrpcMessageBytes + 12'345;
  const auto sender = GrpcDialer().Dial(listener.endpoint(), hello, Soon()).value();
  const auto receiver = listener.Accept(1, Route{0, 0}, Soon()).value();
  const std::span<std::byte> frame = sender->Acquire();
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i * 31 >> 8);

  ASSERT_TRUE(sender->Send(frame.size()).ok());
  const Result<ReceivedFrame> got = receiver->Receive(Soon());

  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ASSERT_EQ(got->bytes.size(), frame.size());
  EXPECT_EQ(std::memcmp(got->bytes.data(), frame.data(), frame.size()), 0);
}

}  // namespace
}  // namespace bascule
