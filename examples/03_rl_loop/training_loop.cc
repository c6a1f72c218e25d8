#include "examples/03_rl_loop/training_loop.h"

#include <array>
#include <optional>
#include <utility>

#include "tools/interrupt.h"

namespace bascule::rl_loop {
namespace {

// The masters are fp32, the engine has them in bf16: that alone moves the ratio by about 0.001.
constexpr double kFirstBatchBound = 0.01;

Status CheckParity(const std::string& of, double deviation, double bound) {
  if (deviation < bound) return OkStatus();
  return Status::DataLoss("engine_disagrees",
                          fmt::format("mean |ratio - 1| of {} is {:.2e}, want < {:.0e}", of, deviation, bound));
}

// What every rank saw of a step becomes what all of them saw. `share` is this rank's of all rows.
Status AddUp(StepRecord& step, double share, Collective& ranks) {
  std::array<double, 7> sums = {share * step.reward,
                                share * step.staleness,
                                share * step.learn.ratio_deviation,
                                share * step.learn.clipped_share,
                                share * step.learn.entropy,
                                static_cast<double>(step.tokens),
                                static_cast<double>(step.stale_tokens)};
  RETURN_IF_ERROR(ranks.Sum(sums));
  step.reward = sums[0];
  step.staleness = sums[1];
  step.learn = {.ratio_deviation = sums[2], .clipped_share = sums[3], .entropy = sums[4]};
  step.tokens = static_cast<std::int64_t>(sums[5]);
  step.stale_tokens = static_cast<std::int64_t>(sums[6]);
  return OkStatus();
}

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
    RETURN_IF_ERROR(Gather());
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
    RETURN_IF_ERROR(Gather());
    ASSIGN_OR_RETURN(record.learn, parts_.trainer.Learn(batch));
    RETURN_IF_ERROR(AddUp(record, batch.share, parts_.ranks));
    if (step == 1) RETURN_IF_ERROR(CheckParity("the first batch", record.learn.ratio_deviation, kFirstBatchBound));
    if (publication_) RETURN_IF_ERROR(publication_->AwaitPacked());
    RETURN_IF_ERROR(parts_.trainer.Step());
    RETURN_IF_ERROR(FinishStep());
    open_step_ = std::move(record);
    if (parts_.publisher == nullptr) return FinishStep();
    RETURN_IF_ERROR(parts_.trainer.CheckInPlace());
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

  // Puts the parameters together, and notes what the engine must say of them once they are live.
  Status Gather() {
    RETURN_IF_ERROR(parts_.trainer.Gather());
    if (publication_ && IsLeader()) expected_ = parts_.trainer.NextTokenLogprobs(parts_.probe.prompts());
    return OkStatus();
  }

  // The version of the last step is live now: its record is complete.
  Status FinishStep() {
    if (!open_step_) return OkStatus();
    if (publication_) {
      ASSIGN_OR_RETURN(open_step_->published, publication_->AwaitCommitted(stop_));
      publication_.reset();
      RETURN_IF_ERROR(Check(*open_step_->published));
    }
    on_step_(*open_step_);
    record_.steps.push_back(*std::exchange(open_step_, std::nullopt));
    return OkStatus();
  }

  Status Check(PublishedVersion& published) {
    auto tokens = static_cast<double>(published.tokens_meanwhile);
    RETURN_IF_ERROR(parts_.ranks.Sum(std::span(&tokens, 1)));
    published.tokens_meanwhile = static_cast<std::uint64_t>(tokens);
    if (!IsLeader()) return OkStatus();
    published.parity = DeviationOf(published.probe, expected_);
    return CheckParity(published.version.ToString(), published.parity, kProbeBound);
  }

  bool IsLeader() const { return parts_.ranks.rank() == 0; }

  const LoopParts parts_;
  const int step_count_;
  const std::function<void(const StepRecord&)>& on_step_;
  const std::stop_token& stop_;
  std::optional<Background<SampledBatch>> next_batch_;
  std::optional<Publication> publication_;  // of open_step_
  std::vector<float> expected_;             // of its probe
  std::optional<StepRecord> open_step_;     // learned from, its version perhaps not live yet
  RunRecord record_;
};

}  // namespace

Result<RunRecord> RunTrainingLoop(const LoopParts& parts, int step_count,
                                  const std::function<void(const StepRecord&)>& on_step, const std::stop_token& stop) {
  return TrainingLoop(parts, step_count, on_step, stop).Run();
}

}  // namespace bascule::rl_loop
