#include "tests/support/sample_messages/sample_messages.h"

#include <limits>

namespace bascule {

Hash256 SampleHash(int seed) {
  Hash256 hash;
  for (std::size_t i = 0; i < hash.bytes.size(); ++i)
    hash.bytes[i] = static_cast<std::byte>(seed + static_cast<int>(i));
  return hash;
}

Layout SampleLayout() {
  Layout layout = PlainLayout({{"model.a", DType::kBf16, {4, 6}}, {"scalar", DType::kF64, {}}});
  layout.ranks[0].tensors.push_back({"padded", DType::kF32, {8}, {2}});
  layout.ranks[0].rows.push_back({2, Box{{0}, {8}}, kFill, Box{}});
  layout.ranks.emplace_back();
  return layout;
}

std::vector<SessionMessage> OneMessageOfEach() {
  ManifestOffer manifest;
  manifest.run = "run";
  manifest.number = std::numeric_limits<std::uint64_t>::max();
  manifest.new_run = true;
  manifest.model = "LlamaForCausalLM layers=2";
  manifest.tensors = SampleLayout().tensors;
  manifest.sender_layout = SampleHash(1);
  manifest.labels = {{"step", "7"}, {"", ""}};
  manifest.families = {{"m", "fp8 128x128 weight_scale_inv", {"m.weight", "m.weight_scale_inv"}}};
  manifest.scope = {"m.*", "scalar"};
  manifest.base = {"run", 6, SampleHash(9)};
  Offer offer{SessionId{5},
              3,
              true,
              true,
              manifest,
              SampleHash(2),
              TransportKind::kShm,
              std::int64_t{1} << 33,
              4,
              std::chrono::microseconds(1'500'001)};
  HelloReply reply;
  reply.engine = InstanceId{9};
  reply.model = "model";
  reply.engine_layout = SampleLayout();
  reply.live = {"run", 8, SampleHash(3)};
  reply.kept = {"run", 7, SampleHash(8)};
  reply.highest_number = 9;
  reply.endpoints = {{TransportKind::kLoopback, "x"},
                     {TransportKind::kShm, "/p"},
                     {TransportKind::kGrpc, "h:1"},
                     {TransportKind::kCudaIpc, "GPU-1:/p"},
                     {TransportKind::kNccl, "GPU-2:2.28.9:grpc:h:1"}};
  reply.connection = ~std::uint64_t{0};
  reply.max_credits = 8;
  FlipReport report{{"run", 8, SampleHash(4)}, 77, 12.5, {1, 2, 3, 4, 5, 6, 7, {{"images", 8, 9}}}};
  return {
      Hello{kWireVersion, InstanceId{1}, "a model", SampleLayout(), {4096, {"*.bias", ""}, 0, {"m.*"}}},
      reply,
      offer,
      Accept{SessionId{1}, {TensorDigest{{5, 6, 7, 8}}, TensorDigest{}}},
      Seal{SessionId{2}, {{TensorDigest{{1, 2, 3, ~std::uint64_t{0}}}, TensorDigest{}}, SampleHash(5)}},
      Missing{SessionId{3}, {0, 7, 4'000'000'000}},
      Ready{SessionId{4}, 1.5, 0.25},
      Flip{SessionId{5}, 12},
      Committed{SessionId{6}, report},
      Abort{SessionId{7}, Status::DataLoss("digest_mismatch", "tensor x")},
      GroupJoin{kWireVersion, "job", 3, 8, InstanceId{11}, SampleLayout()},
      GroupWelcome{InstanceId{12}, 5},
      GroupEnter{6, 17, true},
      GroupLayout{SampleLayout()},
      GroupPlan{
          "engine:1", 9, SampleLayout(), {4096, {"*.bias"}, 1 << 20}, SampleHash(6), {{TransportKind::kShm, "/p"}}},
      GroupPlanned{9, Status::FailedPrecondition("plan_mismatch", "x"), {TransportKind::kGrpc, TransportKind::kShm}},
      GroupSend{SessionId{8}, 9, {TransportKind::kGrpc, "h:1"}, 8192, 4, std::chrono::microseconds(77), true, 6},
      GroupFetch{SessionId{8}, 5, 6},
      GroupSent{SessionId{8}, {TensorDigest{{1, 2, 3, 4}}, TensorDigest{}}, 1 << 20},
      GroupPacked{6},
      GroupOutcome{
          6,
          {"run", 8, SampleHash(7)},
          100,
          200,
          {{"engine:1", Status::Unavailable("rank_lost", "trainer rank 2"), "send", TransportKind::kShm, 1, 2, report},
           {"engine:2", OkStatus(), "", TransportKind::kGrpc, 3, 4, report}}},
      Require{{"run", 8, SampleHash(4)}},
      RollBack{
          {"run", 8, SampleHash(4)}, 7, Status::Aborted("gate_refused", "why"), std::chrono::microseconds(78), true},
      RolledBack{report},
      GroupAgain{6}};
}

}  // namespace bascule
