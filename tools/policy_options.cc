#include "tools/policy_options.h"

#include <CLI/CLI.hpp>
#include <map>
#include <utility>

#include "tools/canary_gate.h"
#include "tools/options.h"
#include "tools/outcome.h"
#include "tools/sentinels.h"

namespace bascule {
namespace {

const std::map<std::string, PublishPolicy>& Policies() {
  static const std::map<std::string, PublishPolicy> policies = {
      {"each", PublishPolicy::kEach}, {"all", PublishPolicy::kAll}, {"canary", PublishPolicy::kCanary}};
  return policies;
}

}  // namespace

void AddPolicyOptions(CLI::App& app, PolicyOptions& options) {
  app.add_option("--policy", options.policy,
                 "each: every replica flips when it is ready; all: none flips before all are ready; canary: one "
                 "flips and is looked at, then the rest, or it goes back")
      ->capture_default_str()
      ->check(CLI::IsMember({"each", "all", "canary"}));
  app.add_option("--journal", options.journal,
                 "file that remembers what was decided (--policy all): the same --version again finishes it")
      ->type_name("FILE");
  app.add_option("--sentinels", options.sentinels,
                 "prompts with the trainer's log-probabilities (--policy canary): a line each, "
                 "{\"tokens\":[..],\"logprobs\":[..]}")
      ->type_name("FILE");
  app.add_option("--sentinel-bound", options.sentinel_bound, "by how much a log-probability may differ")
      ->capture_default_str()
      ->check(AtLeast(0));
  app.add_option("--max-weight", options.max_weight,
                 "magnitude that no weight may exceed; with --policy canary all are finite in any case")
      ->check(AtLeast(0));
  app.add_option("--min-replicas", options.min_replicas, "fail at once when fewer can be reached")
      ->capture_default_str()
      ->check(AtLeast(1));
}

Status ApplyPolicy(const PolicyOptions& options, bool leads, const ClientSecurity& security,
                   std::unique_ptr<CommitJournal>& journal, WeightPublisherOptions& publisher) {
  publisher.policy = Policies().at(options.policy);
  publisher.min_replicas = options.min_replicas;
  const bool canary = publisher.policy == PublishPolicy::kCanary;
  if (canary || options.max_weight > 0) publisher.guard = WeightGuard{.max_magnitude = options.max_weight};
  if (!leads) return OkStatus();
  if (!options.journal.empty()) {
    if (publisher.policy != PublishPolicy::kAll) return UsageError("--journal goes with --policy all");
    ASSIGN_OR_RETURN(journal, OpenCommitJournal(options.journal));
    publisher.journal = journal.get();
  }
  if (canary == options.sentinels.empty()) return UsageError("--sentinels and --policy canary go together");
  if (!canary) return OkStatus();
  ASSIGN_OR_RETURN(std::vector<Sentinel> sentinels, ReadSentinels(options.sentinels));
  publisher.gate = SentinelGate(std::move(sentinels), options.sentinel_bound, security);
  return OkStatus();
}

}  // namespace bascule
