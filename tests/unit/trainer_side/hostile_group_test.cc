// Processes of a group that lie: whatever a leader or a member says, the other end names it, sizes nothing by it, and
// is fit for the next round.
#include <functional>

#include "base/worker.h"
#include "bridge/group/merge_layouts.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/session/messages.h"
#include "tests/unit/trainer_side/group_fixture.h"

namespace bascule {
namespace {

using testing::HasSubstr;

class HostileGroupTest : public GroupFixture {
 protected:
  HostileGroupTest() { UseGroup(2); }
  Layout Part(int rank) const { return PartOf(trainer_->Source(), rank).layout(); }
  Layout Whole() const {
    const Layout parts[] = {Part(0), Part(1)};
    const Layout* const pointers[] = {&parts[0], &parts[1]};
    return *MergeLayouts(pointers);
  }

  // What the real member reports after a leader welcomes it and then says `messages`; and `last`, when all questions
  // among them are answered.
  Status MemberAfter(const std::vector<SessionMessage>& messages, const Status& last = OkStatus()) {
    auto questions = std::ranges::count_if(
        messages, [](const SessionMessage& message) { return std::holds_alternative<GroupPlan>(message); });
    const auto leader = *control_.Listen("rank-0", [&](ControlChannel& channel) {
      if (!channel.Receive(Soon()).ok()) return;  // GroupJoin
      static_cast<void>(channel.Send(GroupWelcome{InstanceId::Mint(), 1}));
      for (const SessionMessage& message : messages) static_cast<void>(channel.Send(message));
      while (true) {
        const auto answer = channel.Receive(Soon());
        if (!answer.ok()) return;
        if (const auto* abort = std::get_if<Abort>(&*answer); abort != nullptr && abort->session != SessionId{}) {
          static_cast<void>(channel.Send(Abort{SessionId{}, abort->why}));
        } else if (const auto* planned = std::get_if<GroupPlanned>(&*answer); planned != nullptr) {
          if (!planned->status.ok()) static_cast<void>(channel.Send(Abort{SessionId{}, planned->status}));
          if (--questions == 0 && !last.ok()) static_cast<void>(channel.Send(Abort{SessionId{}, last}));
        }
      }
    });
    const auto member = MakeRank(1);
    const auto report = (*member->Publish({}))->WaitCommitted(Soon());
    CHECK(report.ok());
    return report->replicas[0].status;
  }

  // The plan that a leader would have the group make, and the question for it.
  Plan GroupsPlan() const { return *MakePlan(Whole(), Engine(), Options()); }
  static PlanOptions Options() { return {.bucket_bytes = 4096, .ignore = {}}; }
  Layout Engine() const { return ShardedTrainer::EngineLayout(1, trainer_->Rows()); }
  GroupPlan Question() const {
    return {.replica = "engine",
            .connection = 7,
            .engine_layout = Engine(),
            .plan_options = Options(),
            .plan_digest = GroupsPlan().digest,
            .endpoints = {slices_->endpoint()}};
  }
  GroupSend Order() const {
    slices_->Expect(7);
    return {.session = SessionId{3},
            .connection = 7,
            .endpoint = slices_->endpoint(),
            .frame_bytes = MaxFrameBytes(GroupsPlan()),
            .credits = 1,
            .time_left = std::chrono::seconds(10),
            .round = 1};
  }
};

TEST_F(HostileGroupTest, ALeaderThatShowsAMemberOtherTensorsThanItHasIsRefused) {
  Layout other = Whole();
  std::swap(other.ranks[0], other.ranks[1]);
  Layout broken = Whole();
  broken.ranks[1].rows[0].local = 99;
  Layout longer = Whole();
  longer.ranks.push_back(longer.ranks[0]);

  EXPECT_EQ(MemberAfter({GroupLayout{other}}).reason(), "bad_message");
  EXPECT_EQ(MemberAfter({GroupLayout{broken}}).reason(), "bad_layout");
  EXPECT_EQ(MemberAfter({GroupLayout{longer}}).reason(), "bad_message");
}

TEST_F(HostileGroupTest, ALeaderWithAnotherPlanOrNoLayoutIsTold) {
  GroupPlan other = Question();
  other.plan_digest.bytes[3] ^= std::byte{1};
  GroupPlan broken = Question();
  broken.plan_options.bucket_bytes = std::int64_t{1} << 60;
  broken.plan_options.window_bytes = -1;

  EXPECT_EQ(MemberAfter({GroupLayout{Whole()}, other}).reason(), "plan_mismatch");
  EXPECT_EQ(MemberAfter({Question()}).reason(), "unexpected_message");
  EXPECT_EQ(MemberAfter({GroupLayout{Whole()}, broken}).reason(), "bad_layout");
  EXPECT_EQ(MemberAfter({Hello{}}).reason(), "unexpected_message");
}

// Had anything before the leader's last word ended the session or the round, the member would say so.
TEST_F(HostileGroupTest, WhatALeaderSaysTwiceInAnyOrderChangesNothing) {
  const Status last = Status::Aborted("canary_failed", "the leader's last word");
  const GroupLayout layout{Whole()};
  const GroupPlan plan = Question();
  const GroupSend send = Order();
  const Missing missing{SessionId{3}, {}};

  const Status ended =
      MemberAfter({layout, layout, plan, layout, plan, send, plan, send, layout, send, missing, plan}, last);

  EXPECT_EQ(ended.reason(), "canary_failed") << ended.ToString();
}

TEST_F(HostileGroupTest, AConnectionThatIsNamedTwiceForDifferentReplicasIsRefused) {
  GroupPlan other = Question();
  other.replica = "another engine";

  EXPECT_EQ(MemberAfter({GroupLayout{Whole()}, Question(), other}).reason(), "bad_message");
}

TEST_F(HostileGroupTest, AnOrderWithOtherSizesThanThePlanHasOpensNoRoute) {
  const auto with = [&](const std::function<void(GroupSend&)>& change) {
    GroupSend order = Order();
    change(order);
    return MemberAfter({GroupLayout{Whole()}, Question(), order}).reason();
  };

  EXPECT_EQ(with([](GroupSend& order) { order.connection = 8; }), "bad_message");
  EXPECT_EQ(with([](GroupSend& order) { order.frame_bytes = 64; }), "bad_message");
  EXPECT_EQ(with([](GroupSend& order) { order.frame_bytes = std::int64_t{1} << 50; }), "bad_message");
  EXPECT_EQ(with([](GroupSend& order) { order.credits = 1 << 30; }), "bad_route");
  EXPECT_EQ(with([](GroupSend& order) { order.credits = -1; }), "bad_route");
  EXPECT_EQ(with([](GroupSend& order) { order.round = 2; }), "superseded");
  EXPECT_EQ(with([](GroupSend& order) { order.endpoint.kind = TransportKind::kGrpc; }), "transport_unavailable");
  EXPECT_EQ(with([](GroupSend& order) { order.endpoint.address = "nowhere"; }), "peer_unreachable");
}

TEST_F(HostileGroupTest, BucketsThatNoPlanHasAreNeverSent) {
  GroupSend on_request = Order();
  on_request.on_request = true;
  const auto planned = static_cast<std::uint32_t>(GroupsPlan().buckets.size());
  const auto after = [&](const GroupSend& order, const SessionMessage& message) {
    return MemberAfter({GroupLayout{Whole()}, Question(), order, message}).reason();
  };

  EXPECT_EQ(after(on_request, GroupFetch{SessionId{3}, planned, 1}), "bad_message");
  EXPECT_EQ(after(on_request, GroupFetch{SessionId{3}, 0, planned + 1}), "bad_message");
  EXPECT_EQ(after(on_request, GroupFetch{SessionId{3}, ~0U, ~0U}), "bad_message");
  EXPECT_EQ(after(Order(), GroupFetch{SessionId{3}, 0, 1}), "unexpected_message");
  EXPECT_EQ(after(on_request, Missing{SessionId{3}, {0}}), "unexpected_message");
}

// A process that joins as rank 1 and then says what `lie` makes of the leader's message; nothing: it is silent.
class HostileMember {
 public:
  HostileMember(LoopbackControl& control, Layout part,
                std::function<std::vector<SessionMessage>(const SessionMessage&)> lie) {
    channel_ = *control.Dial("rank-0", Deadline::After(Clock::Real(), std::chrono::seconds(30)));
    CHECK(channel_
              ->Send(GroupJoin{.wire_version = kWireVersion,
                               .group = "job",
                               .rank = 1,
                               .world_size = 2,
                               .instance = InstanceId::Mint(),
                               .part = std::move(part)})
              .ok());
    worker_ = Worker("hostile", [this, lie = std::move(lie)](std::stop_token) {
      while (true) {
        const auto message = channel_->Receive(Deadline::After(Clock::Real(), std::chrono::seconds(60)));
        if (!message.ok()) return;
        for (const SessionMessage& said : lie(*message)) static_cast<void>(channel_->Send(said));
      }
    });
  }
  ~HostileMember() {
    channel_->Cancel();
    worker_.Join();
  }

 private:
  std::unique_ptr<ControlChannel> channel_;
  Worker worker_;
};

class HostileMemberTest : public HostileGroupTest {
 protected:
  // What the leader reports of a publish with such a member; then a good one takes its place.
  Status LeaderAfter(const std::function<std::vector<SessionMessage>(const SessionMessage&)>& lie) {
    ranks_.clear();
    engines_.clear();
    options_.replicas.clear();
    AddEngine();
    ranks_.push_back(MakeRank(0));
    Status status;
    {
      const HostileMember member(control_, Part(1), [&](const SessionMessage& message) {
        if (const auto* welcome = std::get_if<GroupWelcome>(&message)) {
          return std::vector<SessionMessage>{GroupEnter{.round = welcome->round, .number = {}}};
        }
        return lie(message);
      });
      status = PublishAll()[0].replicas[0].status;
      EXPECT_EQ(engines_[0]->live().number, 0U);
    }
    ranks_.push_back(MakeRank(1));
    for (const PublishReport& report : PublishAll()) {
      EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
    }
    return status;
  }
  static std::vector<SessionMessage> Agree(const SessionMessage& message) {
    const auto* question = std::get_if<GroupPlan>(&message);
    if (question == nullptr) return {};
    return {GroupPlanned{question->connection, {}, {TransportKind::kLoopback}}};
  }
};

TEST_F(HostileMemberTest, TotalsOfOtherTensorsThanThePlanHasEndTheSessionByName) {
  const Status status = LeaderAfter([](const SessionMessage& message) -> std::vector<SessionMessage> {
    const auto* order = std::get_if<GroupSend>(&message);
    if (order == nullptr) return Agree(message);
    return {GroupSent{order->session, std::vector<TensorDigest>(3), 0}};
  });

  EXPECT_EQ(status.reason(), "bad_message");
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 1"));
}

TEST_F(HostileMemberTest, AMemberThatSaysItHasSentAndHasNotIsFoundOut) {
  const Status status = LeaderAfter([this](const SessionMessage& message) -> std::vector<SessionMessage> {
    if (const auto* order = std::get_if<GroupSend>(&message)) {
      return {GroupSent{order->session, std::vector<TensorDigest>(Engine().tensors.size()), 0}};
    }
    if (const auto* missing = std::get_if<Missing>(&message)) {
      return {GroupSent{missing->session, std::vector<TensorDigest>(Engine().tensors.size()), 0}};
    }
    return Agree(message);
  });

  EXPECT_EQ(status.reason(), "buckets_missing") << status.ToString();
}

TEST_F(HostileMemberTest, WhatHasNoPlaceEndsTheMembershipByName) {
  const Status status = LeaderAfter([](const SessionMessage& message) -> std::vector<SessionMessage> {
    if (!std::holds_alternative<GroupPlan>(message)) return {};
    return {Flip{SessionId{9}, 0}};
  });

  EXPECT_EQ(status.reason(), "rank_lost");
  EXPECT_THAT(status.message(), HasSubstr("trainer rank 1"));
  EXPECT_THAT(status.message(), HasSubstr("Flip has no place here"));
}

TEST_F(HostileMemberTest, LayoutsThatNoRankCanHaveAreRefusedAtTheDoor) {
  AddEngine();
  ranks_.push_back(MakeRank(0));
  const auto refusal = [&](Layout part) {
    const auto channel = *control_.Dial("rank-0", Soon());
    CHECK(channel->Send(GroupJoin{kWireVersion, "job", 1, 2, InstanceId::Mint(), std::move(part)}).ok());
    const auto answer = channel->Receive(Soon());
    CHECK(answer.ok() && std::holds_alternative<Abort>(*answer));
    return std::get<Abort>(*answer).why.reason();
  };
  Layout two = Part(1);
  two.ranks.push_back(two.ranks[0]);
  Layout outside = Part(1);
  outside.ranks[0].rows[0].logical_box.offset[0] = std::int64_t{1} << 62;
  Layout bomb = Part(1);
  bomb.tensors[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};

  EXPECT_EQ(refusal(two), "bad_layout");
  EXPECT_EQ(refusal(outside), "bad_layout");
  EXPECT_EQ(refusal(bomb), "bad_layout");
  EXPECT_EQ(refusal(Layout{}), "bad_layout");
}

}  // namespace
}  // namespace bascule
