#include "bridge/session/grpc/session_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "bascule/v1/session.pb.h"
#include "tests/support/sample_messages/sample_messages.h"

namespace bascule {
namespace {

template <typename T>
T RoundTrip(const SessionMessage& message) {
  return std::get<T>(*DecodeSessionMessage(EncodeSessionMessage(message)));
}

// Messages have no operator==: equal bytes of a deterministic encoding stand for it, after the fields that matter.
TEST(SessionCodecTest, EveryMessageSurvivesTheRoundTrip) {
  for (const SessionMessage& message : OneMessageOfEach()) {
    const std::string bytes = EncodeSessionMessage(message);

    const Result<SessionMessage> decoded = DecodeSessionMessage(bytes);

    ASSERT_TRUE(decoded.ok()) << MessageName(message) << decoded.status().ToString();
    EXPECT_EQ(decoded->index(), message.index());
  }
  const auto all = OneMessageOfEach();
  const auto hello = std::get<Hello>(*DecodeSessionMessage(EncodeSessionMessage(all[0])));
  EXPECT_EQ(hello.sender_layout, std::get<Hello>(all[0]).sender_layout);
  EXPECT_EQ(hello.plan_options, std::get<Hello>(all[0]).plan_options);
  EXPECT_EQ(hello.publisher, InstanceId{1});
  EXPECT_EQ(hello.model, "a model");
  const auto reply = std::get<HelloReply>(*DecodeSessionMessage(EncodeSessionMessage(all[1])));
  EXPECT_EQ(reply.engine_layout, std::get<HelloReply>(all[1]).engine_layout);
  EXPECT_EQ(reply.live, std::get<HelloReply>(all[1]).live);
  EXPECT_EQ(reply.kept, std::get<HelloReply>(all[1]).kept);
  EXPECT_EQ(reply.endpoints, std::get<HelloReply>(all[1]).endpoints);
  EXPECT_EQ(reply.connection, ~std::uint64_t{0});
  const auto offer = std::get<Offer>(*DecodeSessionMessage(EncodeSessionMessage(all[2])));
  EXPECT_EQ(offer.manifest, std::get<Offer>(all[2]).manifest);
  EXPECT_EQ(offer.plan_digest, SampleHash(2));
  EXPECT_EQ(offer.transport, TransportKind::kShm);
  EXPECT_EQ(offer.frame_bytes, std::int64_t{1} << 33);
  EXPECT_EQ(offer.time_left, std::chrono::microseconds(1'500'001));
  EXPECT_TRUE(offer.take_over);
  EXPECT_TRUE(offer.first);
  EXPECT_EQ(std::get<Accept>(*DecodeSessionMessage(EncodeSessionMessage(all[3]))).base, std::get<Accept>(all[3]).base);
  EXPECT_EQ(std::get<Seal>(*DecodeSessionMessage(EncodeSessionMessage(all[4]))).manifest,
            std::get<Seal>(all[4]).manifest);
  EXPECT_EQ(std::get<Missing>(*DecodeSessionMessage(EncodeSessionMessage(all[5]))).buckets,
            std::get<Missing>(all[5]).buckets);
  const auto committed = std::get<Committed>(*DecodeSessionMessage(EncodeSessionMessage(all[8])));
  EXPECT_EQ(committed.report.kv, std::get<Committed>(all[8]).report.kv);
  EXPECT_EQ(committed.report.version, std::get<Committed>(all[8]).report.version);
  EXPECT_EQ(std::get<Abort>(*DecodeSessionMessage(EncodeSessionMessage(all[9]))).why, std::get<Abort>(all[9]).why);
}

TEST(SessionCodecTest, MessagesOfAFleetKeepWhatTheySay) {
  const auto all = OneMessageOfEach();

  const auto roll_back = RoundTrip<RollBack>(all[22]);
  EXPECT_EQ(RoundTrip<Require>(all[21]).version, (WeightVersion{"run", 8, SampleHash(4)}));
  EXPECT_EQ(roll_back.from, (WeightVersion{"run", 8, SampleHash(4)}));
  EXPECT_EQ(roll_back.to, 7u);
  EXPECT_EQ(roll_back.why, Status::Aborted("gate_refused", "why"));
  EXPECT_EQ(roll_back.time_left, std::chrono::microseconds(78));
  EXPECT_EQ(RoundTrip<RolledBack>(all[23]).report.version, (WeightVersion{"run", 8, SampleHash(4)}));
  EXPECT_TRUE(RoundTrip<RollBack>(RollBack{.from = {"run", 8, SampleHash(4)}, .to = 7}).why.ok());
  EXPECT_FALSE(RoundTrip<RollBack>(RollBack{.from = {"run", 8, SampleHash(4)}}).to);
}

TEST(SessionCodecTest, MessagesOfATrainerGroupKeepWhatTheySay) {
  const auto all = OneMessageOfEach();
  ASSERT_EQ(all.size(), std::variant_size_v<SessionMessage>);

  const auto join = RoundTrip<GroupJoin>(all[10]);
  EXPECT_EQ(join.group, "job");
  EXPECT_EQ(join.rank, 3);
  EXPECT_EQ(join.world_size, 8);
  EXPECT_EQ(join.instance, InstanceId{11});
  EXPECT_EQ(join.part, SampleLayout());
  EXPECT_EQ(RoundTrip<GroupWelcome>(all[11]).round, 5U);
  EXPECT_EQ(RoundTrip<GroupEnter>(all[12]).number, 17U);
  EXPECT_EQ(RoundTrip<GroupEnter>(GroupEnter{6, std::nullopt}).number, std::nullopt);
  EXPECT_TRUE(RoundTrip<GroupEnter>(all[12]).sends_again);
  EXPECT_EQ(RoundTrip<GroupAgain>(all[24]).round, 6U);
  EXPECT_EQ(RoundTrip<GroupLayout>(all[13]).layout, SampleLayout());
  const auto plan = RoundTrip<GroupPlan>(all[14]);
  EXPECT_EQ(plan.replica, "engine:1");
  EXPECT_EQ(plan.engine_layout, SampleLayout());
  EXPECT_EQ(plan.plan_options, (PlanOptions{4096, {"*.bias"}, 1 << 20}));
  EXPECT_EQ(plan.plan_digest, SampleHash(6));
  EXPECT_EQ(plan.endpoints, std::get<GroupPlan>(all[14]).endpoints);
  const auto planned = RoundTrip<GroupPlanned>(all[15]);
  EXPECT_EQ(planned.status, std::get<GroupPlanned>(all[15]).status);
  EXPECT_EQ(planned.transports, std::get<GroupPlanned>(all[15]).transports);
  const auto send = RoundTrip<GroupSend>(all[16]);
  EXPECT_EQ(send.endpoint, (TransportEndpoint{TransportKind::kGrpc, "h:1"}));
  EXPECT_EQ(send.frame_bytes, 8192);
  EXPECT_EQ(send.credits, 4);
  EXPECT_EQ(send.time_left, std::chrono::microseconds(77));
  EXPECT_TRUE(send.on_request);
  EXPECT_EQ(send.round, 6U);
  const auto fetch = RoundTrip<GroupFetch>(all[17]);
  EXPECT_EQ(fetch.first_bucket, 5U);
  EXPECT_EQ(fetch.bucket_count, 6U);
  EXPECT_EQ(RoundTrip<GroupSent>(all[18]).totals, std::get<GroupSent>(all[18]).totals);
  EXPECT_EQ(RoundTrip<GroupSent>(all[18]).wire_bytes, 1 << 20);
  const auto outcome = RoundTrip<GroupOutcome>(all[20]);
  EXPECT_EQ(outcome.version, std::get<GroupOutcome>(all[20]).version);
  EXPECT_EQ(outcome.replicas[0].status, std::get<GroupOutcome>(all[20]).replicas[0].status);
  EXPECT_TRUE(outcome.replicas[1].status.ok());
  EXPECT_EQ(outcome.replicas[1].flip.kv, (KvReport{1, 2, 3, 4, 5, 6, 7, {{"images", 8, 9}}}));
}

// C-041.
TEST(SessionCodecTest, AMessageOfTheBoundIsReadAndOneByteMoreIsNot) {
  Abort abort{SessionId{1}, Status::DataLoss("reason", std::string(kMaxSessionMessageBytes - 100, 'x'))};
  const std::size_t around = EncodeSessionMessage(abort).size() - abort.why.message().size();
  for (const std::size_t bytes : {kMaxSessionMessageBytes - 1, kMaxSessionMessageBytes, kMaxSessionMessageBytes + 1}) {
    abort.why = Status::DataLoss("reason", std::string(bytes - around, 'x'));
    const std::string encoded = EncodeSessionMessage(abort);
    ASSERT_EQ(encoded.size(), bytes);

    EXPECT_EQ(DecodeSessionMessage(encoded).ok(), bytes <= kMaxSessionMessageBytes) << bytes;
  }
}

// C-041.
TEST(SessionCodecTest, OfALongErrorTextThe64KiBThatAreKeptAreRead) {
  const std::string text(std::size_t{1} << 20, 'x');

  const Result<SessionMessage> decoded =
      DecodeSessionMessage(EncodeSessionMessage(Abort{SessionId{1}, Status::DataLoss("reason", text)}));

  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(std::get<Abort>(*decoded).why, Status::DataLoss("reason", text.substr(0, 64 << 10)));
}

// C-007.
TEST(SessionCodecTest, AnOfferThatDoesNotAskForItTakesNobodysPlaceAndStartsNoRun) {
  v1::SessionMessage proto;
  ASSERT_TRUE(proto.ParseFromString(EncodeSessionMessage(OneMessageOfEach()[2])));
  proto.mutable_offer()->clear_take_over();
  proto.mutable_offer()->mutable_manifest()->clear_new_run();

  const Result<SessionMessage> decoded = DecodeSessionMessage(proto.SerializeAsString());

  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_FALSE(std::get<Offer>(*decoded).take_over);
  EXPECT_FALSE(std::get<Offer>(*decoded).manifest.new_run);
  EXPECT_FALSE(Offer().take_over);
  EXPECT_FALSE(Offer().manifest.new_run);
}

// C-047.
TEST(SessionCodecTest, AFieldOutOfItsBoundsIsABadMessageThatNamesIt) {
  const auto all = OneMessageOfEach();
  const auto with = [&](std::size_t index, const std::function<void(v1::SessionMessage&)>& damage) {
    v1::SessionMessage proto;
    EXPECT_TRUE(proto.ParseFromString(EncodeSessionMessage(all[index])));
    damage(proto);
    const Status status = DecodeSessionMessage(proto.SerializeAsString()).status();
    EXPECT_EQ(status.reason(), "bad_message");
    return status.message();
  };
  using Message = v1::SessionMessage;

  EXPECT_THAT(with(0,
                   [](Message& m) {
                     for (int i = 0; i < 9; ++i)
                       m.mutable_hello()->mutable_sender_layout()->mutable_tensors(0)->add_shape(1);
                   }),
              ::testing::HasSubstr("tensor.shape"));
  EXPECT_THAT(
      with(0, [](Message& m) { m.mutable_hello()->mutable_sender_layout()->mutable_tensors(0)->set_shape(0, -1); }),
      ::testing::HasSubstr("tensor.shape"));
  EXPECT_THAT(
      with(0, [](Message& m) { m.mutable_hello()->mutable_sender_layout()->mutable_tensors(0)->set_dtype("BF17"); }),
      ::testing::HasSubstr("tensor.dtype"));
  EXPECT_THAT(with(0,
                   [](Message& m) {
                     m.mutable_hello()
                         ->mutable_sender_layout()
                         ->mutable_ranks(0)
                         ->mutable_rows(0)
                         ->mutable_local_box()
                         ->add_offset(0);
                   }),
              ::testing::HasSubstr("row.local_box"));
  EXPECT_THAT(with(1, [](Message& m) { m.mutable_hello_reply()->mutable_live()->set_digest("short"); }),
              ::testing::HasSubstr("version.digest"));
  EXPECT_THAT(with(1, [](Message& m) { m.mutable_hello_reply()->mutable_endpoints(0)->set_kind(v1::Transport(99)); }),
              ::testing::HasSubstr("endpoints"));
  EXPECT_THAT(with(2, [](Message& m) { m.mutable_offer()->clear_plan_digest(); }), ::testing::HasSubstr("plan_digest"));
  EXPECT_THAT(with(2, [](Message& m) { m.mutable_offer()->set_time_left_us(std::int64_t{1} << 62); }),
              ::testing::HasSubstr("time_left"));
  EXPECT_THAT(with(4, [](Message& m) { m.mutable_seal()->mutable_manifest()->mutable_digests(0)->add_lane(0); }),
              ::testing::HasSubstr("lanes"));
  EXPECT_THAT(with(6, [](Message& m) { m.mutable_ready()->set_stage_ms(std::nan("")); }),
              ::testing::HasSubstr("stage_ms"));
  EXPECT_THAT(with(9, [](Message& m) { m.mutable_abort()->set_code("OK"); }), ::testing::HasSubstr("code"));
  EXPECT_THAT(with(9, [](Message& m) { m.mutable_abort()->set_reason(std::string(129, 'r')); }),
              ::testing::HasSubstr("reason of 129 bytes"));
  EXPECT_THAT(with(9, [](Message& m) { m.clear_body(); }), ::testing::HasSubstr("message"));
}

// The wire type of protobuf for what has a length, and a field number.
std::string Wrapped(int field, const std::string& bytes) {
  std::string out(1, static_cast<char>((field << 3) | 2));
  std::size_t length = bytes.size();
  for (; length >= 128; length >>= 7) out.push_back(static_cast<char>((length & 127) | 128));
  out.push_back(static_cast<char>(length));
  return out + bytes;
}

// Hello (1) with a sender layout (4) of one rank (2) whose rows (2) map nothing: two bytes each.
std::string HelloWithEmptyRows(std::size_t count) {
  std::string rows;
  for (std::size_t i = 0; i < count; ++i) rows += Wrapped(2, "");
  return Wrapped(1, Wrapped(4, Wrapped(2, rows)));
}

TEST(SessionCodecTest, AMessageThatWouldUnfoldToMoreThanItsBoundIsRefusedBeforeItIsBuilt) {
  EXPECT_THAT(DecodeSessionMessage(HelloWithEmptyRows(1000)).status().message(),
              ::testing::Not(::testing::HasSubstr("parts")));

  for (const std::string& bytes :
       {HelloWithEmptyRows(kMaxSessionMessageParts),
        // Numbers of Missing (6), of which a list has a byte each, and fields that nobody knows.
        Wrapped(6, Wrapped(2, std::string(kMaxSessionMessageParts * 8, '\1'))), Wrapped(1, [] {
          std::string unknown;
          for (std::size_t i = 0; i < kMaxSessionMessageParts; ++i) unknown += "\x78\x01";
          return unknown;
        }())}) {
    ASSERT_LT(bytes.size(), kMaxSessionMessageBytes);
    const Status status = DecodeSessionMessage(bytes).status();
    EXPECT_EQ(status.reason(), "bad_message");
    EXPECT_THAT(status.message(), ::testing::HasSubstr("parts"));
  }
}

TEST(SessionCodecTest, NestingBeyondAnyMessageOfOursIsRefused) {
  std::string groups(1000, '\x0b');  // starts group 1, again and again
  EXPECT_EQ(DecodeSessionMessage(groups).status().reason(), "bad_message");
  EXPECT_EQ(DecodeSessionMessage(Wrapped(1, groups)).status().reason(), "bad_message");
}

// C-047.
// Sixteen thousand damaged messages: each is refused as bad_message or decodes to something that encodes again.
TEST(SessionCodecTest, RandomDamageNeverDoesMoreThanFailToDecode) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> seeds;
  for (const SessionMessage& message : OneMessageOfEach()) seeds.push_back(EncodeSessionMessage(message));

  for (int round = 0; round < 16'000; ++round) {
    std::string bytes = seeds[random() % seeds.size()];
    for (unsigned damage = random() % 4 + 1; damage > 0 && !bytes.empty(); --damage) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.insert(at, 1, static_cast<char>(random()));
          break;
        default:
          bytes.replace(at, random() % 8, seeds[random() % seeds.size()], 0, random() % 16);
          break;
      }
    }

    const Result<SessionMessage> decoded = DecodeSessionMessage(bytes);

    if (decoded.ok()) {
      EXPECT_FALSE(EncodeSessionMessage(*decoded).empty());
    } else {
      ASSERT_EQ(decoded.status().reason(), "bad_message");
    }
  }
}

}  // namespace
}  // namespace bascule
