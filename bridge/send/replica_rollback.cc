#include "bridge/send/replica_rollback.h"

#include <optional>
#include <utility>

#include "bridge/session/session_of.h"

namespace bascule {
namespace {

Result<FlipReport> AskForRollback(ReplicaConnection& connection, const RollBack& request, Deadline deadline,
                                  const StopSignal& stop) {
  RETURN_IF_ERROR(connection.inbox().Send(request));
  while (true) {
    auto answer = connection.inbox().Next(deadline, stop.token());
    if (!answer.ok()) return stop.Explain(answer.status());
    // What the engine still has to say of a session that is over is no answer.
    if (SessionOf(**answer) != SessionId{}) continue;
    if (auto* done = std::get_if<RolledBack>(&**answer)) return std::move(done->report);
    return Unexpected(**answer);
  }
}

}  // namespace

Result<FlipReport> RollBackReplica(ReplicaConnection& connection, RollBack request, Deadline deadline,
                                   const StopSignal& stop) {
  connection.Enter(SendPhase::kRollback);
  request.time_left = deadline.Left(*connection.options().clock);
  Result<FlipReport> report = AskForRollback(connection, request, deadline, stop);
  if (report.ok()) {
    connection.NoteRolledBack(report->version, /*keeps=*/!request.refused);
    return report;
  }
  if (!connection.inbox().Quiet() || report.status().code() == StatusCode::kDeadlineExceeded ||
      stop.token().stop_requested()) {
    connection.Close();
  }
  return connection.Failure(report.status());
}

}  // namespace bascule
