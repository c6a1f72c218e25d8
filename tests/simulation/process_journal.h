// The journal of a trainer process: the product's own file, which outlives the process. What the process has not
// written when it is killed it never writes.
//
// Thread-safety: as CommitJournal; on fibers of one scheduler.
#pragma once

#include <memory>
#include <string>

#include "tests/simulation/fleet_promises.h"
#include "trainer_side/commit_journal.h"

namespace bascule::simulation {

class ProcessJournal final : public CommitJournal {
 public:
  // Waits until a process that was killed has let go of the file. `promises` is borrowed, and hears of decisions.
  ProcessJournal(const std::string& path, FleetPromises& promises, Clock& clock);

  std::optional<CommitDecision> last() const override;
  Status Decide(const WeightVersion& version, const std::vector<std::string>& replicas) override;
  Status NoteLive(const std::string& address) override;
  Status NoteTakenBack(bool taken_back) override;

  void Kill() { file_.reset(); }

 private:
  FleetPromises& promises_;
  std::shared_ptr<CommitJournal> file_;  // shared with calls under way; null once the process is killed
};

}  // namespace bascule::simulation
