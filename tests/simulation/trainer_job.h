// A simulated trainer: one process, or a group of them with a rank each. It makes version after version, publishes each
// through the product's WeightPublisher, and overwrites its tensors the moment it is told that it may.
//
// Thread-safety: confined to one thread; its functions run on fibers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "tests/simulation/fleet_promises.h"
#include "tests/simulation/network.h"
#include "tests/simulation/process_journal.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/version_record.h"
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

// How a job publishes part of its tensors.
struct Partial {
  const Scope* scope = nullptr;
  bool names_base = false;    // the version that it noted last; else its publisher chooses
  bool has_the_rest = false;  // outside the scope it holds what it noted last; else nothing that any version has
};

class TrainerJob {
  struct Process;

 public:
  struct Surroundings {
    std::function<NodeId()> new_node;  // for a process that begins
    std::function<int()> new_content;  // the number of the next version's values
    CanaryGate gate;
    std::function<bool(const WeightVersion&)> is_live_now;  // on any engine
    std::string journal;                                    // path
  };
  TrainerJob(Scheduler& scheduler, Network& network, VersionRecord& versions, FleetPromises& promises, Watch watch,
             Surroundings surroundings, JobKind kind);
  ~TrainerJob();

  // A publish whose tensors are packed, and have been overwritten.
  struct UnderWay {
    const Content* sent = nullptr;
    bool is_partial = false;
    TimePoint began;
    Duration longest{};               // that it may take
    std::shared_ptr<Process> leader;  // null: it was down
    std::vector<std::pair<int, std::shared_ptr<PublishHandle>>> handles = {};
  };
  UnderWay Begin(PublishRequest request, const std::optional<Partial>& partial);
  // One that `older` gives way to.
  UnderWay Supersede(UnderWay& older, PublishRequest request, const std::optional<Partial>& partial);
  struct Published {
    const Content* content = nullptr;  // null: a partial version that nobody was offered
    PublishReport report;              // of rank 0
    bool committed = false;            // everywhere
    bool is_partial = false;
  };
  Published End(const UnderWay& publish);
  Published Publish(PublishRequest request, const std::optional<Partial>& partial = std::nullopt) {
    return End(Begin(std::move(request), partial));
  }
  // The fleet goes back to the version that all keep, if that can be.
  void RollBack();

  // An offer that one of its processes makes, on its way.
  void OnOffer(const ManifestOffer& offer);

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
  // A publish of part of the tensors. What it comes to is known once it says on what it builds.
  struct PartialPublish {
    const Content* sent = nullptr;
    const Scope* scope = nullptr;
    std::optional<WeightVersion> named;  // as its base, by the trainer
    std::optional<WeightVersion> base = {};
    const Content* content = nullptr;
  };

  void Declare(const Content& sent, const Partial& partial, PublishRequest& request);
  void Hold(const Content& sent, const std::optional<Partial>& partial);
  void CheckTime(const UnderWay& publish) const;
  void CheckScope(const PartialPublish& partial, const PublishReport& report);
  void Check(const Published& published, const std::string& rank);

  Scheduler& scheduler_;
  Network& network_;
  Clock& clock_;
  VersionRecord& versions_;
  FleetPromises& promises_;
  const Watch watch_;
  const Surroundings surroundings_;
  const JobKind kind_;
  ShardedTrainer tensors_;
  std::map<int, PartialPublish> partials_;  // by the number of the values that are sent
  std::optional<WeightVersion> noted_;      // the last version that it heard to be live; outlives its processes
  std::vector<std::shared_ptr<Process>> processes_;  // shared with a publish under way; null while down
  std::vector<Worker> undertakers_;
};

}  // namespace bascule::simulation
