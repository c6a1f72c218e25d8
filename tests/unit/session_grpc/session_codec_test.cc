#include "bridge/session/grpc/session_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "bascule/v1/session.pb.h"

namespace bascule {
namespace {

Hash256 Hash(int seed) {
  Hash256 hash;
  for (std::size_t i = 0; i < hash.bytes.size(); ++i)
    hash.bytes[i] = static_cast<std::byte>(seed + static_cast<int>(i));
  return hash;
}

Layout SomeLayout() {
  Layout layout = PlainLayout({{"model.a", DType::kBf16, {4, 6}}, {"scalar", DType::kF64, {}}});
  layout.ranks[0].tensors.push_back({"padded", DType::kF32, {8}, {2}});
  layout.ranks[0].rows.push_back({2, Box{{0}, {8}}, kFill, Box{}});
  layout.ranks.emplace_back();
  return layout;
}

std::vector<SessionMessage> OneOfEach() {
  ManifestOffer manifest;
  manifest.run = "run";
  manifest.number = std::numeric_limits<std::uint64_t>::max();
  manifest.new_run = true;
  manifest.model = "LlamaForCausalLM layers=2";
  manifest.tensors = SomeLayout().tensors;
  manifest.sender_layout = Hash(1);
  manifest.labels = {{"step", "7"}, {"", ""}};
  manifest.families = {{"m", "fp8 128x128 weight_scale_inv", {"m.weight", "m.weight_scale_inv"}}};
  Offer offer{SessionId{5},
              3,
              true,
              manifest,
              Hash(2),
              TransportKind::kShm,
              std::int64_t{1} << 33,
              4,
              std::chrono::microseconds(1'500'001)};
  HelloReply reply;
  reply.engine = InstanceId{9};
  reply.model = "model";
  reply.engine_layout = SomeLayout();
  reply.live = {"run", 8, Hash(3)};
  reply.kept = {"run", 7, Hash(8)};
  reply.highest_number = 9;
  reply.endpoints = {{TransportKind::kLoopback, "x"}, {TransportKind::kShm, "/p"}, {TransportKind::kGrpc, "h:1"}};
  reply.connection = ~std::uint64_t{0};
  reply.max_credits = 8;
  FlipReport report{{"run", 8, Hash(4)}, 77, 12.5, {1, 2, 3, 4, 5, 6, 7, {{"images", 8, 9}}}};
  return {
      Hello{kWireVersion, InstanceId{1}, "a model", SomeLayout(), {4096, {"*.bias", ""}}},
      reply,
      offer,
      Accept{SessionId{1}},
      Seal{SessionId{2}, {{TensorDigest{{1, 2, 3, ~std::uint64_t{0}}}, TensorDigest{}}, Hash(5)}},
      Missing{SessionId{3}, {0, 7, 4'000'000'000}},
      Ready{SessionId{4}, 1.5, 0.25},
      Flip{SessionId{5}, 12},
      Committed{SessionId{6}, report},
      Abort{SessionId{7}, Status::DataLoss("digest_mismatch", "tensor x")},
      GroupJoin{kWireVersion, "job", 3, 8, InstanceId{11}, SomeLayout()},
      GroupWelcome{InstanceId{12}, 5},
      GroupEnter{6, 17},
      GroupLayout{SomeLayout()},
      GroupPlan{"engine:1", 9, SomeLayout(), {4096, {"*.bias"}}, Hash(6), {{TransportKind::kShm, "/p"}}},
      GroupPlanned{9, Status::FailedPrecondition("plan_mismatch", "x"), {TransportKind::kGrpc, TransportKind::kShm}},
      GroupSend{SessionId{8}, 9, {TransportKind::kGrpc, "h:1"}, 8192, 4, std::chrono::microseconds(77)},
      GroupSent{SessionId{8}, {TensorDigest{{1, 2, 3, 4}}, TensorDigest{}}, 1 << 20},
      GroupPacked{6},
      GroupOutcome{
          6,
          {"run", 8, Hash(7)},
          100,
          200,
          {{"engine:1", Status::Unavailable("rank_lost", "trainer rank 2"), "send", TransportKind::kShm, 1, 2, report},
           {"engine:2", OkStatus(), "", TransportKind::kGrpc, 3, 4, report}}},
      Require{{"run", 8, Hash(4)}},
      RollBack{{"run", 8, Hash(4)}, 7, Status::Aborted("gate_refused", "why"), std::chrono::microseconds(78)},
      RolledBack{report}};
}

template <typename T>
T RoundTrip(const SessionMessage& message) {
  return std::get<T>(*DecodeSessionMessage(EncodeSessionMessage(message)));
}

// Messages have no operator==: equal bytes of a deterministic encoding stand for it, after the fields that matter.
TEST(SessionCodecTest, EveryMessageSurvivesTheRoundTrip) {
  for (const SessionMessage& message : OneOfEach()) {
    const std::string bytes = EncodeSessionMessage(message);

    const Result<SessionMessage> decoded = DecodeSessionMessage(bytes);

    ASSERT_TRUE(decoded.ok()) << MessageName(message) << decoded.status().ToString();
    EXPECT_EQ(decoded->index(), message.index());
  }
  const auto all = OneOfEach();
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
  EXPECT_EQ(offer.plan_digest, Hash(2));
  EXPECT_EQ(offer.transport, TransportKind::kShm);
  EXPECT_EQ(offer.frame_bytes, std::int64_t{1} << 33);
  EXPECT_EQ(offer.time_left, std::chrono::microseconds(1'500'001));
  EXPECT_TRUE(offer.take_over);
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
  const auto all = OneOfEach();

  const auto roll_back = RoundTrip<RollBack>(all[21]);
  EXPECT_EQ(RoundTrip<Require>(all[20]).version, (WeightVersion{"run", 8, Hash(4)}));
  EXPECT_EQ(roll_back.from, (WeightVersion{"run", 8, Hash(4)}));
  EXPECT_EQ(roll_back.to, 7u);
  EXPECT_EQ(roll_back.why, Status::Aborted("gate_refused", "why"));
  EXPECT_EQ(roll_back.time_left, std::chrono::microseconds(78));
  EXPECT_EQ(RoundTrip<RolledBack>(all[22]).report.version, (WeightVersion{"run", 8, Hash(4)}));
  EXPECT_TRUE(RoundTrip<RollBack>(RollBack{.from = {"run", 8, Hash(4)}, .to = 7}).why.ok());
}

TEST(SessionCodecTest, MessagesOfATrainerGroupKeepWhatTheySay) {
  const auto all = OneOfEach();
  ASSERT_EQ(all.size(), std::variant_size_v<SessionMessage>);

  const auto join = RoundTrip<GroupJoin>(all[10]);
  EXPECT_EQ(join.group, "job");
  EXPECT_EQ(join.rank, 3);
  EXPECT_EQ(join.world_size, 8);
  EXPECT_EQ(join.instance, InstanceId{11});
  EXPECT_EQ(join.part, SomeLayout());
  EXPECT_EQ(RoundTrip<GroupWelcome>(all[11]).round, 5U);
  EXPECT_EQ(RoundTrip<GroupEnter>(all[12]).number, 17U);
  EXPECT_EQ(RoundTrip<GroupEnter>(GroupEnter{6, std::nullopt}).number, std::nullopt);
  EXPECT_EQ(RoundTrip<GroupLayout>(all[13]).layout, SomeLayout());
  const auto plan = RoundTrip<GroupPlan>(all[14]);
  EXPECT_EQ(plan.replica, "engine:1");
  EXPECT_EQ(plan.engine_layout, SomeLayout());
  EXPECT_EQ(plan.plan_options, (PlanOptions{4096, {"*.bias"}}));
  EXPECT_EQ(plan.plan_digest, Hash(6));
  EXPECT_EQ(plan.endpoints, std::get<GroupPlan>(all[14]).endpoints);
  const auto planned = RoundTrip<GroupPlanned>(all[15]);
  EXPECT_EQ(planned.status, std::get<GroupPlanned>(all[15]).status);
  EXPECT_EQ(planned.transports, std::get<GroupPlanned>(all[15]).transports);
  const auto send = RoundTrip<GroupSend>(all[16]);
  EXPECT_EQ(send.endpoint, (TransportEndpoint{TransportKind::kGrpc, "h:1"}));
  EXPECT_EQ(send.frame_bytes, 8192);
  EXPECT_EQ(send.credits, 4);
  EXPECT_EQ(send.time_left, std::chrono::microseconds(77));
  EXPECT_EQ(RoundTrip<GroupSent>(all[17]).totals, std::get<GroupSent>(all[17]).totals);
  EXPECT_EQ(RoundTrip<GroupSent>(all[17]).wire_bytes, 1 << 20);
  const auto outcome = RoundTrip<GroupOutcome>(all[19]);
  EXPECT_EQ(outcome.version, std::get<GroupOutcome>(all[19]).version);
  EXPECT_EQ(outcome.replicas[0].status, std::get<GroupOutcome>(all[19]).replicas[0].status);
  EXPECT_TRUE(outcome.replicas[1].status.ok());
  EXPECT_EQ(outcome.replicas[1].flip.kv, (KvReport{1, 2, 3, 4, 5, 6, 7, {{"images", 8, 9}}}));
}

TEST(SessionCodecTest, AFieldOutOfItsBoundsIsABadMessageThatNamesIt) {
  const auto all = OneOfEach();
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
  EXPECT_THAT(with(9, [](Message& m) { m.clear_body(); }), ::testing::HasSubstr("message"));
}

// Sixteen thousand damaged messages: each is refused as bad_message or decodes to something that encodes again.
TEST(SessionCodecTest, RandomDamageNeverDoesMoreThanFailToDecode) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> seeds;
  for (const SessionMessage& message : OneOfEach()) seeds.push_back(EncodeSessionMessage(message));

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
