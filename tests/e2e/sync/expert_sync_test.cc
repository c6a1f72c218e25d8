// A mixture of experts from four processes' publishers, each with experts of its own, into a receiver of two
// tensor-parallel ranks: every expert is where its number says, by the digest of live memory.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "bridge/group/merge_layouts.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/weight_receiver.h"
#include "model/engine_layout.h"
#include "tests/support/scripted_engine/digest_oracle.h"
#include "trainer_side/layouts/layout_spec.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {
namespace {

constexpr int kTrainerRanks = 4;

ModelConfig MixtureOfEight() {
  ModelConfig config;
  config.architecture = "Qwen3MoeForCausalLM";
  config.layers = 2;
  config.hidden = 16;
  config.ffn = 24;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_size = 8;
  config.vocabulary = 40;
  config.experts = {.count = 8, .per_token = 2, .ffn = 12};
  return config;
}

// Element e of a tensor: no two elements of any tensors are likely to be the same.
std::uint16_t Element(const std::string& name, std::int64_t e) {
  return static_cast<std::uint16_t>(std::hash<std::string>{}(name)*31 + static_cast<std::uint64_t>(e) * 2654435761U);
}

// What one rank of a dense layout holds, every row filled from the logical tensor.
std::vector<std::vector<std::uint16_t>> MemoryOf(const Layout& part) {
  std::vector<std::vector<std::uint16_t>> memory;
  for (const LocalTensor& local : part.ranks[0].tensors) {
    memory.emplace_back(static_cast<std::size_t>(local.Bytes() / 2));
  }
  for (const MapRow& row : part.ranks[0].rows) {
    if (row.logical == kFill) continue;
    const TensorSpec& spec = part.tensors[static_cast<std::size_t>(row.logical)];
    const LocalTensor& local = part.ranks[0].tensors[static_cast<std::size_t>(row.local)];
    // Element by element, each a box of its own in row-major order.
    const std::vector<Box> from = CutBox(row.logical_box, 1);
    const std::vector<Box> to = CutBox(row.local_box, 1);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto place = [](const Box& box, const Dims& shape) {
        std::int64_t at = 0;
        for (int d = 0; d < box.dims(); ++d) at = at * shape[d] + box.offset[d];
        return at;
      };
      memory[static_cast<std::size_t>(row.local)][static_cast<std::size_t>(place(to[i], local.shape))] =
          Element(spec.name, place(from[i], spec.shape));
    }
  }
  return memory;
}

class ExpertSyncTest : public testing::TestWithParam<bool> {};

TEST_P(ExpertSyncTest, ExpertsOfFourRanksReachTwoTensorParallelOnes) {
  const ModelConfig config = MixtureOfEight();
  const std::vector<TensorSpec> tensors = LogicalTensors(config, DType::kBf16);
  const Layout trainer = *MakeTrainerLayout("megatron:tp=1,pp=1,ep=4", kTrainerRanks, tensors, &config);
  LoopbackControl control;
  LoopbackNetwork network;
  LoopbackDialer dialer(network);
  const auto engine_listener = *LoopbackListener::Create(network, "engine");
  const auto slices = *LoopbackListener::Create(network, "rank-0");
  IdleHooks hooks;
  WeightReceiverOptions receiver_options;
  receiver_options.layout = MakeEngineLayout(config, DType::kBf16, {.tensor = 2})->layout;
  receiver_options.listeners = {engine_listener.get()};
  receiver_options.full_tensors_only = GetParam();
  const auto receiver = *WeightReceiver::Create(receiver_options, hooks);
  const auto serving =
      *control.Listen("engine", [&](ControlChannel& channel) { static_cast<void>(receiver->Serve(channel)); });

  std::vector<std::vector<std::vector<std::uint16_t>>> memory;
  std::vector<std::unique_ptr<WeightPublisher>> publishers;
  for (int rank = 0; rank < kTrainerRanks; ++rank) {
    const Layout part = PartOf(trainer, rank);
    memory.push_back(MemoryOf(part));
    std::vector<const void*> addresses;
    for (const auto& local : memory.back()) addresses.push_back(local.data());
    TensorSource source(/*trainer_ranks=*/1, part.tensors);
    ASSERT_TRUE(source.AddRank(0, part.ranks[0], addresses).ok());
    WeightPublisherOptions options;
    options.group = {.rank = rank, .world_size = kTrainerRanks, .leader = "trainer", .name = "job", .host = &control};
    options.control = &control;
    options.transports = {&dialer};
    options.run = "run";
    options.bucket_bytes = 4096;
    options.connect_timeout = std::chrono::minutes(1);
    if (rank == 0) options.replicas = {"engine"};
    if (rank == 0) options.group.listeners = {slices.get()};
    publishers.push_back(*WeightPublisher::Create(options, std::move(source)));
  }
  std::vector<std::shared_ptr<PublishHandle>> handles;
  for (const auto& publisher : publishers) handles.push_back(*publisher->Publish({}));

  for (const auto& handle : handles) {
    const auto report = handle->WaitCommitted(Deadline::After(Clock::Real(), std::chrono::minutes(2)));
    ASSERT_TRUE(report.ok());
    ASSERT_TRUE(report->AllCommitted()) << report->replicas[0].status.ToString();
  }

  std::map<std::string, TensorDigest> expected;
  for (const TensorSpec& tensor : tensors) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.Bytes()));
    for (std::int64_t e = 0; e < tensor.Elements(); ++e) {
      const std::uint16_t element = Element(tensor.name, e);
      std::memcpy(&bytes[static_cast<std::size_t>(e) * 2], &element, 2);
    }
    expected[tensor.name] = OracleDigest(tensor, bytes);
  }
  const auto live = receiver->DigestLive();
  ASSERT_TRUE(live.ok());
  EXPECT_TRUE(live->replica_differences.empty());
  for (std::size_t t = 0; t < receiver_options.layout.tensors.size(); ++t) {
    const std::string& name = receiver_options.layout.tensors[t].name;
    EXPECT_EQ(live->totals[t], expected.at(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ExpertSyncTest, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& full) {
                           return full.param ? "Gathered" : "Resharded";
                         });

}  // namespace
}  // namespace bascule
