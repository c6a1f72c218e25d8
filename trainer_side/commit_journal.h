// What a publisher with policy `all` has decided, so that it still knows after it was killed: one decision, the last.
// It is durable before the first replica is told to flip. Replicas that are known to have the version are noted behind
// it; those that are not have missed a commit.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

struct CommitDecision {
  WeightVersion version;
  std::vector<std::string> replicas;  // that were all ready
  std::set<std::string> live;         // of those, where it is known to have gone live
  bool taken_back = false;            // the fleet has gone back from it since: nobody lacks it
  bool has(const std::string& address) const { return live.contains(address); }
  bool finished() const {
    return taken_back ||
           std::all_of(replicas.begin(), replicas.end(), [this](const auto& address) { return has(address); });
  }
};

// Thread-safety: thread-safe.
class CommitJournal {
 public:
  virtual ~CommitJournal() = default;
  // Nothing before the first decision.
  virtual std::optional<CommitDecision> last() const = 0;
  // Takes the place of the last one. What was decided is durable when this returns OK; else the last one stands.
  //
  // Unavailable "journal_failed"
  virtual Status Decide(const WeightVersion& version, const std::vector<std::string>& replicas) = 0;
  // The version of the last decision is live on this replica.
  //
  // Unavailable "journal_failed"
  virtual Status NoteLive(const std::string& address) = 0;
  // The fleet goes back from the version of the last decision; or, false, forward to it again.
  //
  // Unavailable "journal_failed"
  virtual Status NoteTakenBack(bool taken_back) = 0;
};

// A file, which appears with the first decision and is replaced as a whole, and `path`.lock beside it.
//
// FailedPrecondition "journal_in_use"  another process has it open
// DataLoss "bad_journal"               what is there is none, or is damaged
// Unavailable "journal_failed"         it cannot be read or locked
Result<std::unique_ptr<CommitJournal>> OpenCommitJournal(const std::string& path);

}  // namespace bascule
