#include "examples/03_rl_loop/training_loop.h"

#include <optional>
#include <utility>

#include "tools/interrupt.h"

namespace bascule::rl_loop {
namespace {

// bf16 rounding alone moves the ratio by about 0.001; a model that differs, by far more.
constexpr double kParityBound = 0.01;

class TrainingLoop {
 public:
  TrainingLoop(const LoopParts& parts, int step_count, const std::function<void(const StepRecord&)>& on_step,
               const std::stop_token& stop)
      : parts_(parts), step_count_(step_count), on_step_(on_step), stop_(stop) {}

  Result<RunRecord> Run() {
    Clock& clock = Clock::Real();
    const TimePoint began = clock.Now();
    RequestBatch(1);
    for (int step = 1; step <= step_count_; ++step) RETURN_IF_ERROR(RunStep(step));
    RETURN_IF_ERROR(FinishStep());
    record_.seconds = std::chrono::duration<double>(clock.Now() - began).count();
    return std::move(record_);
  }

 private:
  Status RunStep(int step) {
    if (stop_.stop_requested()) return InterruptedError();
    ASSIGN_OR_RETURN(const SampledBatch batch, next_batch_->Take(stop_));
    next_batch_.reset();
    if (step < step_count_) RequestBatch(step + 1);
    StepRecord record = Describe(step, batch);
    record.learn = parts_.trainer.Learn(batch);
    if (step == 1) RETURN_IF_ERROR(CheckParity(record.learn));
    if (publication_) RETURN_IF_ERROR(publication_->AwaitPacked());
    parts_.trainer.Step();
    RETURN_IF_ERROR(FinishStep());
    open_step_ = std::move(record);
    if (parts_.publisher == nullptr) return FinishStep();
    ASSIGN_OR_RETURN(publication_, parts_.publisher->Publish(static_cast<std::uint64_t>(step)));
    return OkStatus();
  }

  void RequestBatch(int step) { next_batch_ = parts_.sampler.Request(static_cast<std::uint64_t>(step)); }

  StepRecord Describe(int step, const SampledBatch& batch) const {
    // The masters that learn from the batch are version step - 1.
    const auto version = static_cast<std::uint64_t>(step - 1);
    return {.step = step,
            .reward = batch.MeanReward(),
            .staleness = batch.MeanStaleness(version),
            .tokens = static_cast<std::int64_t>(batch.token_versions.size()),
            .stale_tokens = batch.StaleTokens(version)};
  }

  static Status CheckParity(const LearnReport& learn) {
    if (learn.ratio_deviation < kParityBound) return OkStatus();
    return Status::DataLoss("engine_disagrees", fmt::format("mean |ratio - 1| of the first batch is {:.4f}, want < {}",
                                                            learn.ratio_deviation, kParityBound));
  }

  // The version of the last step is live now: its record is complete.
  Status FinishStep() {
    if (!open_step_) return OkStatus();
    if (publication_) {
      ASSIGN_OR_RETURN(open_step_->published, publication_->AwaitCommitted(stop_));
      publication_.reset();
    }
    on_step_(*open_step_);
    record_.steps.push_back(*std::exchange(open_step_, std::nullopt));
    return OkStatus();
  }

  const LoopParts parts_;
  const int step_count_;
  const std::function<void(const StepRecord&)>& on_step_;
  const std::stop_token& stop_;
  std::optional<Background<SampledBatch>> next_batch_;
  std::optional<Publication> publication_;  // of open_step_
  std::optional<StepRecord> open_step_;     // learned from, its version perhaps not live yet
  RunRecord record_;
};

}  // namespace

Result<RunRecord> RunTrainingLoop(const LoopParts& parts, int step_count,
                                  const std::function<void(const StepRecord&)>& on_step, const std::stop_token& stop) {
  return TrainingLoop(parts, step_count, on_step, stop).Run();
}

}  // namespace bascule::rl_loop
