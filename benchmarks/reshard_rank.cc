#include "benchmarks/reshard_rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/checked_math.h"
#include "benchmarks/bench_model.h"
#include "bridge/group/merge_layouts.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "model/engine_layout.h"
#include "trainer_side/layouts/layout_spec.h"

namespace bascule {
namespace {

constexpr Duration kPublishDeadline = std::chrono::minutes(2);

// Weights for every local tensor, one after another.
Result<std::unique_ptr<DeviceBuffer>> RandomWeightsOf(const RankLayout& rank) {
  std::vector<TensorSpec> tensors;
  for (const LocalTensor& local : rank.tensors) tensors.push_back({local.name, local.dtype, local.shape});
  return RandomBf16Weights(tensors);
}

Result<TensorSource> SourceOf(const Layout& part, const std::byte* weights) {
  TensorSource source(/*trainer_ranks=*/1, part.tensors);
  std::vector<const void*> data;
  for (const LocalTensor& local : part.ranks.front().tensors) {
    data.push_back(weights);
    weights += local.Bytes();
  }
  RETURN_IF_ERROR(source.AddRank(0, part.ranks.front(), data));
  return source;
}

}  // namespace

Result<std::unique_ptr<ReshardRank>> ReshardRank::Create(const ModelConfig& config, TrainerGroup group, Sending sending,
                                                         const std::string& replica) {
  std::unique_ptr<ReshardRank> rank(new ReshardRank());
  ASSIGN_OR_RETURN(const Layout layout,
                   MakeTrainerLayout("fsdp", group.world_size, LogicalTensors(config, DType::kBf16), &config));
  const Layout part = PartOf(layout, group.rank);
  ASSIGN_OR_RETURN(rank->weights_, RandomWeightsOf(part.ranks.front()));
  ASSIGN_OR_RETURN(TensorSource source, SourceOf(part, rank->weights_->bytes().data()));
  group.host = &rank->host_;
  group.name = "benchmark";
  if (sending == Sending::kGather && group.rank == 0) {
    ASSIGN_OR_RETURN(rank->slices_,
                     ShmListener::Create(fmt::format("{}/benchmark-{}-slices", DefaultRuntimeDirectory(), getpid())));
    group.listeners = {rank->slices_.get()};
  }
  WeightPublisherOptions options{.group = std::move(group),
                                 .replicas = {replica},
                                 .control = &rank->control_,
                                 .transports = {&rank->transport_},
                                 .run = "benchmark",
                                 .model = config.Description(),
                                 .gather = sending == Sending::kGather,
                                 .deadline = kPublishDeadline};
  ASSIGN_OR_RETURN(rank->publisher_, WeightPublisher::Create(std::move(options), std::move(source)));
  return rank;
}

Result<PublishReport> ReshardRank::Publish() {
  const Deadline deadline = Deadline::After(Clock::Real(), 2 * kPublishDeadline);
  ASSIGN_OR_RETURN(const std::shared_ptr<PublishHandle> handle, publisher_->Publish({}));
  ASSIGN_OR_RETURN(PublishReport report, handle->WaitCommitted(deadline));
  for (const ReplicaReport& replica : report.replicas) RETURN_IF_ERROR(replica.status);
  return report;
}

}  // namespace bascule
