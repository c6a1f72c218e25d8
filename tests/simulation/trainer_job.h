// A simulated trainer: one process, or a group of them with a rank each. It makes version after version, publishes each
// through the product's WeightPublisher, and overwrites its tensors the moment it is told that it may.
//
// Thread-safety: confined to one thread; its functions run on fibers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/worker.h"
#include "tests/simulation/contents.h"
#include "tests/simulation/fleet_promises.h"
#include "tests/simulation/network.h"
#include "tests/simulation/process_journal.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/watch.h"
#include "trainer_side/weight_publisher.h"

namespace bascule::simulation {

struct JobKind {
  std::string name;
  int ranks = 1;
  bool group = false;  // each rank is a process of its own
  Snapshot snapshot = Snapshot::kNone;
  std::vector<std::string> replicas;
  PublishPolicy policy = PublishPolicy::kEach;
  bool catch_up = false;
  bool new_run = false;  // engines have base weights
};

class TrainerJob {
 public:
  struct Surroundings {
    std::function<NodeId()> new_node;  // for a process that begins
    std::function<int()> new_content;  // the number of the next version's values
    CanaryGate gate;
    std::string journal;  // path
  };
  TrainerJob(Scheduler& scheduler, Network& network, const WentLive& went_live, FleetPromises& promises, Watch watch,
             Surroundings surroundings, JobKind kind);
  ~TrainerJob();

  struct Published {
    const Content* content = nullptr;
    PublishReport report;    // of rank 0
    bool committed = false;  // everywhere
  };
  Published Publish(const PublishRequest& request);
  // The fleet goes back to the version that all keep, if that can be.
  void RollBack();

  // What a replica's call comes to in the process that leads; that of one that is down is never answered.
  Result<FleetWelcome> Join(NodeId caller, const FleetHeartbeat& heartbeat, Deadline deadline);
  Status Leave(NodeId caller, const std::string& address, InstanceId instance, Deadline deadline);
  // What the process that leads has committed, if it still has the bytes: whoever lacks it is brought it.
  std::optional<WeightVersion> BroughtToAll() const;
  // As far as it knows.
  bool Lacks(const std::string& address, const WeightVersion& version) const;

  int process_count() const { return static_cast<int>(processes_.size()); }
  // 0 while the process is down.
  NodeId node(int process) const;
  std::optional<int> ProcessOf(NodeId node) const;
  void Kill(int process);  // returns at once; what it leaves is cleared away behind the scenes
  void Start(int process);
  void Cancel(int process);

 private:
  struct Process;
  void Check(const Published& published, const std::string& rank);

  Scheduler& scheduler_;
  Network& network_;
  Clock& clock_;
  const WentLive& went_live_;
  FleetPromises& promises_;
  const Watch watch_;
  const Surroundings surroundings_;
  const JobKind kind_;
  ShardedTrainer tensors_;
  std::vector<std::shared_ptr<Process>> processes_;  // shared with a publish under way; null while down
  std::vector<Worker> undertakers_;
};

}  // namespace bascule::simulation
