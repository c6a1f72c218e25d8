#include "tests/simulation/fleet_shape.h"

#include <fmt/format.h>

namespace bascule::simulation {
namespace {

EngineKind DrawEngine(Random& random) {
  EngineKind kind{.ranks = static_cast<int>(random.Between(1, kEngineRanksMost)),
                  .slot_count = static_cast<int>(random.Between(2, 3)),
                  .flip = FlipMode::kShadow};
  if (random.OneIn(4)) kind = {.ranks = kind.ranks, .slot_count = 2, .flip = FlipMode::kInPlace};
  return kind;
}

// A cache daemon and one or two engines of its host, which nobody publishes to.
void AddHost(FleetShape& fleet, Random& random, const std::string& directory) {
  EngineKind daemon{.ranks = static_cast<int>(random.Between(1, kEngineRanksMost)),
                    .slot_count = static_cast<int>(random.Between(2, 3)),
                    .is_daemon = true,
                    .socket = directory + "/cache.sock"};
  fleet.replicas.push_back({"daemon", daemon});
  const std::int64_t followers = random.Between(1, 2);
  for (std::int64_t i = 0; i < followers; ++i) {
    const EngineKind follower{.ranks = daemon.ranks,
                              .slot_count = static_cast<int>(random.Between(2, 3)),
                              .daemon = "daemon",
                              .socket = daemon.socket,
                              .checks_daemon = !random.OneIn(3)};
    fleet.replicas.push_back({fmt::format("follower-{}", i), follower});
  }
  fleet.has_daemon = true;
}

JobKind DrawJob(Random& random, int number) {
  JobKind kind{.name = fmt::format("trainer-{}", number),
               .ranks = static_cast<int>(random.Between(1, 2)),
               .snapshot = random.OneIn(3) ? Snapshot::kHost : Snapshot::kNone};
  kind.group = kind.ranks > 1 && random.OneIn(2);
  return kind;
}

// One trainer and its fleet: a policy, base weights, replicas that join.
void MakeFleet(FleetShape& fleet, Random& random) {
  JobKind& job = fleet.jobs.front();
  fleet.policy = static_cast<PublishPolicy>(random.Below(3));
  job.policy = fleet.policy;
  job.catch_up = random.OneIn(2);
  if (job.catch_up) job.snapshot = Snapshot::kHost;
  job.new_run = fleet.policy == PublishPolicy::kCanary || random.OneIn(2);
  // A canary needs something to go back to, which one that has joined waits for instead of loading its files.
  bool may_join = job.catch_up && fleet.policy != PublishPolicy::kCanary;
  for (ReplicaShape& replica : fleet.replicas) {
    if (!replica.kind.daemon.empty()) continue;
    replica.kind.joins = may_join && random.OneIn(2);
    replica.kind.has_base = job.new_run && !replica.kind.joins;
    may_join = job.catch_up;
  }
}

}  // namespace

FleetShape DrawFleet(Random& random, const std::string& directory) {
  FleetShape fleet;
  const int jobs = random.OneIn(4) ? 2 : 1;
  // Rivals in one run learn of each other's numbers from the replicas: a daemon that forgets them when it is killed
  // would have engines hear one number twice.
  const bool has_daemon = jobs == 1 && random.OneIn(3);
  const std::int64_t engines = has_daemon ? random.Between(0, 1) : random.Between(1, 3);
  for (std::int64_t i = 0; i < engines; ++i) {
    fleet.replicas.push_back({fmt::format("engine-{}", i), DrawEngine(random)});
  }
  if (has_daemon) AddHost(fleet, random, directory);
  for (int i = 0; i < jobs; ++i) fleet.jobs.push_back(DrawJob(random, i));
  if (jobs == 1 && !random.OneIn(3)) MakeFleet(fleet, random);
  for (JobKind& job : fleet.jobs) {
    for (const ReplicaShape& replica : fleet.replicas) {
      const bool listed = replica.kind.daemon.empty() && !(replica.kind.joins && random.OneIn(2));
      if (listed) job.replicas.push_back(replica.address);
    }
  }
  return fleet;
}

}  // namespace bascule::simulation
