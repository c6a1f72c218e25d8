// What a seed makes of a fleet: its replicas, its cache daemon and who follows that, its trainers and their policy.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <string>
#include <vector>

#include "tests/simulation/engine_node.h"
#include "tests/simulation/random.h"
#include "tests/simulation/trainer_job.h"

namespace bascule::simulation {

struct ReplicaShape {
  std::string address;
  EngineKind kind;
};

struct FleetShape {
  std::vector<ReplicaShape> replicas;
  std::vector<JobKind> jobs;
  PublishPolicy policy = PublishPolicy::kEach;
  bool has_daemon = false;
};

// `directory` is for sockets.
FleetShape DrawFleet(Random& random, const std::string& directory);

}  // namespace bascule::simulation
