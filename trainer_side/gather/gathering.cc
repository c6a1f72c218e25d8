#include "trainer_side/gather/gathering.h"

#include "base/log.h"

namespace bascule {

Status Gathering::Open(const Layout& trainer, const std::vector<TensorSpec>& wire, const PlanOptions& options,
                       Deadline deadline, const std::stop_token& stop) {
  const bool stands = plan_ && plan_->plan().tensors == wire && plan_->options() == options &&
                      (connection_ != nullptr || options_.team == nullptr);
  if (stands) return OkStatus();
  Close();
  ASSIGN_OR_RETURN(plan_, GatherPlan::Make(trainer, wire, options, plans_));
  if (options_.team == nullptr) return OkStatus();
  ASSIGN_OR_RETURN(connection_, GatherConnection::Open(*plan_, *options_.team, options_.listeners, options_.credits,
                                                       deadline, stop));
  return OkStatus();
}

void Gathering::Close() {
  connection_.reset();
  plan_.reset();
}

TensorGatherer& Gathering::Begin(const WeightSource& own, Deadline deadline) {
  return gatherer_.emplace(*plan_, own, connection_.get(), deadline, *options_.clock);
}

std::int64_t Gathering::Finish() {
  const bool usable = gatherer_->Finish();
  const std::int64_t window_bytes = gatherer_->window_bytes();
  LogInfo("gather_ended", "windows={} window_bytes={} usable={}", plan_->windows().size(), window_bytes, usable);
  gatherer_.reset();
  if (!usable) Close();
  return window_bytes;
}

}  // namespace bascule
