#include "benchmarks/sync_trainer.h"

#include "benchmarks/bench_model.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr Duration kPublishDeadline = std::chrono::minutes(2);

Result<TensorSource> SourceOf(const std::vector<TensorSpec>& tensors, std::span<const std::byte> weights) {
  TensorSource source(/*trainer_ranks=*/1);
  std::size_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    RETURN_IF_ERROR(source.Add(0, {.tensor = tensor, .box = Box::Whole(tensor.shape), .data = weights.data() + at}));
    at += static_cast<std::size_t>(tensor.Bytes());
  }
  return source;
}

}  // namespace

Result<std::unique_ptr<SyncTrainer>> SyncTrainer::Create(const ModelConfig& config, std::string address,
                                                         ControlDialer& control, TransportDialer& transport) {
  std::unique_ptr<SyncTrainer> trainer(new SyncTrainer());
  const std::vector<TensorSpec> tensors = LogicalTensors(config, DType::kBf16);
  ASSIGN_OR_RETURN(trainer->weights_, RandomBf16Weights(tensors));
  ASSIGN_OR_RETURN(TensorSource source, SourceOf(tensors, trainer->weights_->bytes()));
  std::size_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    trainer->tensors_.push_back(at);
    at += static_cast<std::size_t>(tensor.Bytes());
  }
  WeightPublisherOptions options{.replicas = {std::move(address)},
                                 .control = &control,
                                 .transports = {&transport},
                                 .run = "benchmark",
                                 .model = config.Description(),
                                 .deadline = kPublishDeadline};
  ASSIGN_OR_RETURN(trainer->publisher_, WeightPublisher::Create(std::move(options), std::move(source)));
  return trainer;
}

void SyncTrainer::Step() {
  for (const std::size_t tensor : tensors_) weights_->bytes()[tensor] ^= std::byte{1};  // a mantissa's last bit
}

Status SyncTrainer::PublishUntilSealed() {
  RETURN_IF_ERROR(AwaitFlip());
  Step();
  const Deadline deadline = Deadline::After(Clock::Real(), 2 * kPublishDeadline);
  ASSIGN_OR_RETURN(sealed_, publisher_->Publish({}));
  return sealed_->WaitPacked(deadline);
}

Status SyncTrainer::AwaitFlip() {
  const auto sealed = std::exchange(sealed_, nullptr);
  if (sealed == nullptr) return OkStatus();
  ASSIGN_OR_RETURN(const PublishReport report,
                   sealed->WaitCommitted(Deadline::After(Clock::Real(), 2 * kPublishDeadline)));
  return report.replicas[0].status;
}

Result<PublishReport> SyncTrainer::PublishAndReport() {
  RETURN_IF_ERROR(AwaitFlip());
  Step();
  const Deadline deadline = Deadline::After(Clock::Real(), 2 * kPublishDeadline);
  ASSIGN_OR_RETURN(const std::shared_ptr<PublishHandle> handle, publisher_->Publish({}));
  ASSIGN_OR_RETURN(PublishReport report, handle->WaitCommitted(deadline));
  for (const ReplicaReport& replica : report.replicas) RETURN_IF_ERROR(replica.status);
  return report;
}

Result<double> SyncTrainer::Publish() {
  ASSIGN_OR_RETURN(const PublishReport report, PublishAndReport());
  return report.packed_ms / 1e3;
}

}  // namespace bascule
