#include "bridge/send/session_sending.h"

#include <algorithm>
#include <array>

namespace bascule {
namespace {

// What a process of the team says when an engine ended the route it sends on; the engine says why.
constexpr std::array<std::string_view, 5> kSaidByRoutes = {"peer_lost", "peer_unreachable", "unknown_connection",
                                                           "fenced", "cancelled"};

}  // namespace

SessionSending::SessionSending(const BucketPacker& packer, ReplicaConnection& connection, SessionId session,
                               Deadline deadline)
    : source_(packer.source()),
      pipeline_(
          packer, connection.routes(), session, deadline, connection.options().pacer,
          [&connection] { connection.inbox().Wake(); }, &connection.casts()),
      team_(connection.BeginTeamSession(session, deadline)) {}

void SessionSending::SendAll() {
  if (team_ != nullptr) team_->SendAll();
  pipeline_.SendAll();
}

void SessionSending::SendAgain(std::span<const std::uint32_t> buckets) {
  if (team_ != nullptr) team_->SendAgain(buckets);
  pipeline_.SendAgain(buckets);
}

bool SessionSending::finished() const {
  if (team_ == nullptr) return pipeline_.finished();
  return team_->failed() || (pipeline_.finished() && (pipeline_.failed() || team_->finished()));
}

Status SessionSending::Finish() {
  const bool team_was_first = team_failed();
  if (team_was_first) pipeline_.Cancel();
  const Status own = pipeline_.Finish();
  return team_was_first ? team_->failure() : own;
}

bool SessionSending::explains_itself() const {
  if (!team_failed()) return pipeline_.source_failed();
  const std::string reason = team_->failure().reason();
  return std::find(kSaidByRoutes.begin(), kSaidByRoutes.end(), reason) == kSaidByRoutes.end();
}

void SessionSending::End(const Status& why) {
  if (team_ != nullptr) team_->End(why);
}

std::vector<TensorDigest> SessionSending::Totals() const {
  std::vector<TensorDigest> totals = pipeline_.Totals();
  if (team_ != nullptr) team_->AddTotals(totals);
  return totals;
}

std::int64_t SessionSending::wire_bytes() const {
  return pipeline_.wire_bytes() + (team_ == nullptr ? 0 : team_->wire_bytes());
}

}  // namespace bascule
