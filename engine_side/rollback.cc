#include "engine_side/rollback.h"

#include <algorithm>
#include <utility>

namespace bascule {

Result<FlipReport> RollBackReceiver(ReceiverParts& parts, std::optional<std::uint64_t> to, const Status& why,
                                    bool refused, Deadline deadline) {
  return parts.gate.Rollback(to, refused, deadline, [&](const FlipReport& report) {
    HistoryEntry row;
    row.version = report.version;
    row.kind = HistoryEntry::Kind::kRollback;
    row.committed = true;
    row.refused = refused;
    row.why = why;
    row.flip_stall_us = report.flip_stall_us;
    parts.board.Flipped(std::move(row));
  });
}

Result<FlipReport> RollBackReceiver(ReceiverParts& parts, const RollBack& request) {
  const std::optional<WeightVersion> live = parts.slots.live();
  if (live != request.from) {
    return Status::FailedPrecondition("version_not_live", fmt::format("from={} live={}", request.from.ToString(),
                                                                      live ? live->ToString() : std::string("none")));
  }
  const Duration time = std::min(request.time_left, parts.options.max_session);
  return RollBackReceiver(parts, request.to, request.why, request.refused, Deadline::After(parts.clock, time));
}

}  // namespace bascule
