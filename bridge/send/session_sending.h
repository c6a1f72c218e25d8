// Stage: send (plan -> [send] -> transport)
//
// Everybody who sends in one session: the pipeline of this process and the team beside it, as one.
//
// Thread-safety: confined to the session's thread, except finished and team_failed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/send/replica_connection.h"
#include "bridge/send/send_pipeline.h"
#include "bridge/send/sender_team.h"

namespace bascule {

class SessionSending {
 public:
  // Borrows both; the routes of `connection` are open. Wakes its inbox whenever `finished` may have become true.
  SessionSending(const BucketPacker& packer, ReplicaConnection& connection, SessionId session, Deadline deadline);

  // Begins to send every bucket of the plan, or those named, once more. Wait for `finished`, then call Finish.
  void SendAll();
  void SendAgain(std::span<const std::uint32_t> buckets);

  // All buckets that were begun are acknowledged, or somebody has failed.
  bool finished() const;
  bool has_team() const { return team_ != nullptr; }
  bool team_failed() const { return team_ != nullptr && team_->failed(); }
  // Joins the threads of this process: nothing of its source is read any more. The team's failure comes first.
  //
  // As SendPipeline::Finish and TeamSession::failure.
  Status Finish();
  // After Finish: the source of this process could not be read.
  bool source_failed() const { return !team_failed() && pipeline_.source_failed(); }
  // After Finish: what failed knows why by itself; no engine can explain it.
  bool explains_itself() const;
  Status team_failure() const { return team_->failure(); }
  // "trainer ranks 2, 5": who has not finished of the team, or of those that the source reads from. Empty: nobody.
  std::string Unfinished() const { return team_ == nullptr ? source_.WaitsFor() : team_->Unfinished(); }
  void Cancel() { pipeline_.Cancel(); }
  // The session has failed: so it ends for the team.
  void End(const Status& why);

  // After Finish, over all processes: as SendPipeline's.
  std::vector<TensorDigest> Totals() const;
  std::int64_t wire_bytes() const;

 private:
  const WeightSource& source_;
  SendPipeline pipeline_;
  const std::unique_ptr<TeamSession> team_;  // null without a team
};

}  // namespace bascule
