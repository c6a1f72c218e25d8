#include "trainer_side/group_report.h"

namespace bascule {

GroupOutcome OutcomeOf(const PublishReport& report) {
  GroupOutcome outcome{
      .round = 0, .version = report.version, .bytes = report.bytes, .wire_bytes = report.wire_bytes, .replicas = {}};
  for (const ReplicaReport& replica : report.replicas) {
    outcome.replicas.push_back({.address = replica.address,
                                .status = replica.status,
                                .phase = replica.phase,
                                .transport = replica.transport,
                                .stage_ms = replica.stage_ms,
                                .verify_ms = replica.verify_ms,
                                .flip = replica.flip});
  }
  return outcome;
}

PublishReport ReportOf(const GroupOutcome& outcome) {
  PublishReport report{.version = outcome.version,
                       .bytes = outcome.bytes,
                       .wire_bytes = outcome.wire_bytes,
                       .packed_ms = 0,
                       .replicas = {}};
  for (const ReplicaOutcome& replica : outcome.replicas) {
    report.replicas.push_back({.address = replica.address,
                               .status = replica.status,
                               .phase = replica.phase,
                               .state = replica.status.ok() ? ReplicaState::kCommitted : ReplicaState::kAborted,
                               .transport = replica.transport,
                               .stage_ms = replica.stage_ms,
                               .verify_ms = replica.verify_ms,
                               .flip = replica.flip});
  }
  return report;
}

}  // namespace bascule
