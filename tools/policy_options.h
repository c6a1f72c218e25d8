// The options of `publish` that say when replicas flip and who has a say in it.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <memory>
#include <string>

#include "base/peer_security.h"
#include "base/status.h"
#include "trainer_side/commit_journal.h"
#include "trainer_side/weight_publisher.h"

namespace CLI {
class App;
}  // namespace CLI

namespace bascule {

struct PolicyOptions {
  std::string policy = "each";
  std::string journal;    // path; empty: none
  std::string sentinels;  // path
  double sentinel_bound = 0.05;
  double max_weight = 0;  // 0: no bound
  int min_replicas = 1;
};

void AddPolicyOptions(CLI::App& app, PolicyOptions& options);

// Into `publisher`; opens the journal, which `publisher` borrows. The gate calls the canary with `security`. `leads`:
// false for the ranks that another process leads, which decide nothing.
//
// as OpenCommitJournal and ReadSentinels; a wrong usage where options do not go together
Status ApplyPolicy(const PolicyOptions& options, bool leads, const ClientSecurity& security,
                   std::unique_ptr<CommitJournal>& journal, WeightPublisherOptions& publisher);

}  // namespace bascule
