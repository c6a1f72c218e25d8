// The trainer's end of the bridge. Describe the tensors once, then publish versions:
//
//   auto publisher = WeightPublisher::Create(options, std::move(shards));
//   auto handle = publisher->Publish({.number = 8});
//   handle->WaitPacked(deadline);      // tensors may change again; nothing of them is read any more
//   handle->WaitCommitted(deadline);   // what every replica did
//
// Every trainer rank sends its own shards; nobody assembles a full tensor. But for an engine that takes full tensors
// only, and where `gather` asks for it, rank 0 gathers them, a window of a few at a time, and alone sends. A failed
// publish leaves the publisher usable: the next Publish connects again.
//
// The ranks are in this process, or in one process each: a *group*. Then every process makes a publisher of its own
// rank and calls Publish for every version. Rank 0 leads: it alone has replicas and decides; what the others are told
// is of the same form. The k-th call on one rank is the k-th on all. A rank that does not come within the deadline, or
// goes away, ends the publish on all of them, by name; a process that takes its place joins at the next.
//
// Several replicas are a fleet (trainer_side/publish_policy.h). Under policy kAll no replica flips before all are
// ready; a replica that misses what was decided is out of rotation until it is caught up: by the next publish, or by
// one of the same number, which finishes what a journal says was decided and sends only to those that lack it.
//
// Thread-safety: thread-safe; one publish at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/session/control.h"
#include "bridge/session/messages.h"
#include "bridge/transport/transport.h"
#include "trainer_side/commit_journal.h"
#include "trainer_side/fleet_roster.h"
#include "trainer_side/publish_policy.h"
#include "trainer_side/tensor_source.h"
#include "trainer_side/weight_guard.h"

namespace bascule {

enum class Snapshot {
  kNone,         // buckets are packed from the trainer's tensors; packed comes when every replica has sealed
  kHost,         // one copy in the wire dtype is made first; packed comes after that copy
  kDevice,       // as kHost, in memory of the device that the tensors lie on
  kTensorsStay,  // the trainer's tensors never change: they are read as with kNone, and again for who comes late
};

constexpr bool TakesCopy(Snapshot snapshot) { return snapshot == Snapshot::kHost || snapshot == Snapshot::kDevice; }

// One rank among several processes.
struct TrainerGroup {
  int rank = 0;
  int world_size = 1;           // 1: no group
  std::string leader;           // address of rank 0; with port 0 it binds a free one: WeightPublisher::group_address
  std::string name;             // of the job: ranks of another are refused
  ControlHost* host = nullptr;  // borrowed; rank 0 listens with it
  // Where rank 0 takes the slices of the others when it gathers, best first; borrowed. None: it cannot gather.
  std::vector<TransportListener*> listeners;
};

struct WeightPublisherOptions {
  TrainerGroup group;
  std::vector<std::string> replicas;  // control addresses; of rank 0 of a group only
  ControlDialer* control = nullptr;   // borrowed
  // Borrowed; best first, the first that both sides can use is taken. Those with frames on a device (cuda_ipc) serve
  // tensors, or a snapshot, that lie on that device.
  std::vector<TransportDialer*> transports;
  // Likewise; for where one of `transports` has failed a short while ago, and no other of them can be used. A publish
  // whose transport fails goes over another one at once, while there is time.
  std::vector<TransportDialer*> fallbacks;
  std::string run;                           // empty: the run of the engine's live version
  bool new_run = false;                      // `run` starts with the next publish; one that is live goes on
  std::string model;                         // see ManifestOffer::model
  std::vector<QuantizationFamily> families;  // see ManifestOffer::families
  PublishPolicy policy = PublishPolicy::kEach;
  CommitJournal* journal = nullptr;  // of kAll; borrowed; null: what was decided is forgotten with the process
  CanaryGate gate;                   // of kCanary
  std::optional<WeightGuard> guard;  // looks at the weights before they are sent; absent: not at all
  int min_replicas = 1;              // a publish that reaches fewer fails at once
  // Replicas may join and leave (WeightPublisher::Join). One that lacks what the fleet has committed is brought it
  // between publishes, from the snapshot (all but kNone). In a group every rank sets it and keeps its own part; while
  // one has not kept it, or its process was replaced, nobody is caught up before the next publish. Then `replicas` may
  // be empty, if `run` is not.
  bool catch_up = false;
  FleetOptions fleet;
  Snapshot snapshot = Snapshot::kNone;
  std::int64_t bucket_bytes = 2 << 20;
  std::int32_t credits = 4;               // per route
  std::int64_t max_bytes_per_second = 0;  // of this process, to all replicas together; 0: as fast as it goes
  std::vector<std::string> ignore;        // logical names the engine need not know
  bool gather = false;                    // full tensors for every replica, whatever it takes
  Duration connect_timeout = std::chrono::seconds(5);  // of a replica or a leader, and of each route
  Duration deadline = std::chrono::seconds(60);        // of one publish, all phases
  Clock* clock = &Clock::Real();
};

// A *partial* version is sent in part: tensors that a pattern of its scope matches, all of which the trainer must have;
// a replica copies the others from its base, which it must have live ("wrong_base"). What comes of it is a version like
// any other, with the digest of the whole: the engine proves what it copied against the digests of the base, and the
// trainer, that these are the base's.
struct PublishRequest {
  std::optional<std::uint64_t> number;  // default: highest seen + 1
  std::map<std::string, std::string> labels;
  bool take_over = false;
  // Of tensors on a device (TensorSource::LieOn): one event for each stream that writes them, recorded behind its last
  // write; the device reads them then, and nobody waits for it. Borrowed, and not recorded again, until `packed`.
  std::vector<DeviceEvent*> ready = {};
  // A publish that is under way gives way to this one ("superseded"), unless its replicas are flipping: then this one
  // comes after it. In a group: of rank 0 and of every other rank alike.
  bool supersede = false;
  // In a group: rank 0's count.
  std::vector<std::string> scope = {};  // patterns of logical names, '*' matches any text; empty: everything is sent
  // What the tensors outside the scope are. Default: what the fleet has committed from here; before that, the newest
  // version that a replica has live. The same one for all replicas: a version is one set of bytes.
  std::optional<WeightVersion> base = {};
};

// What became of one replica.
struct ReplicaReport {
  std::string address;
  Status status;      // OK: committed
  std::string phase;  // where it failed: group connect hello plan offer send seal verify decide flip rollback
  ReplicaState state = ReplicaState::kAborted;
  TransportKind transport = TransportKind::kLoopback;
  double stage_ms = 0;
  double verify_ms = 0;
  FlipReport flip;
};

struct PublishReport {
  WeightVersion version;                // with the digest that the senders computed
  std::vector<std::string> scope = {};  // of a partial version, as PublishRequest
  std::optional<WeightVersion> base = {};
  std::chrono::system_clock::time_point at = {};  // in the history: of its end
  std::int64_t bytes = 0;                         // payload of one replica
  std::int64_t wire_bytes = 0;                    // frames sent to all replicas, resends included
  std::int64_t gather_window_bytes = 0;           // memory that full tensors took on this rank; 0: none were gathered
  double packed_ms = 0;
  std::vector<ReplicaReport> replicas;
  bool AllCommitted() const;
};

// Thread-safety: thread-safe. Dropping it does not stop the publish.
class PublishHandle {
 public:
  virtual ~PublishHandle() = default;
  // The tensors may change again. Comes also when the publish has failed everywhere.
  //
  // DeadlineExceeded "deadline"
  virtual Status WaitPacked(Deadline deadline) = 0;
  // DeadlineExceeded "deadline"; else the report, in which each replica has its own status
  virtual Result<PublishReport> WaitCommitted(Deadline deadline) = 0;
};

// For status: what the publisher last did, and how its fleet fares.
struct PublisherStatus {
  WeightVersion newest;  // last version packed and sealed
  bool publishing = false;
  std::vector<ReplicaReport> replicas;     // of the last publish
  std::optional<WeightVersion> committed;  // by the fleet
  bool sends_again = false;                // its bytes are at hand: whoever lacks it is brought it
  std::vector<FleetRow> fleet;             // every replica, listed or joined
};

// What became of a fleet's rollback: a replica whose status is not OK has what it had.
struct FleetRollback {
  WeightVersion version;  // that is live again
  std::vector<ReplicaReport> replicas;
};

class WeightPublisher {
 public:
  // Of a group `source` has one rank: this one. Rank 0 listens from here on.
  //
  // InvalidArgument "bad_layout" | "no_replica" | "bad_options" | "not_on_device"; as ControlHost::Listen
  static Result<std::unique_ptr<WeightPublisher>> Create(WeightPublisherOptions options, TensorSource source);
  virtual ~WeightPublisher() = default;  // cancels a running publish and waits for it

  // FailedPrecondition "publish_in_progress"  and the request does not supersede it
  // InvalidArgument "bad_options"  `ready` of tensors in host memory
  virtual Result<std::shared_ptr<PublishHandle>> Publish(PublishRequest request) = 0;
  // Ends a running publish: its replicas, and the ranks of its group, see an Abort "cancelled".
  virtual void Cancel() = 0;
  // A replica is there, or still there (see FleetRoster). What it lacks is brought to it, if that can be.
  //
  // ResourceExhausted "fleet_full"; InvalidArgument "bad_address"; Unimplemented "no_fleet"  catch_up is not set
  virtual Result<FleetWelcome> Join(const FleetHeartbeat& heartbeat) = 0;
  virtual void Leave(const std::string& address, InstanceId instance) = 0;

  // Every replica goes back to the version it has kept, which has to be the same one for all that can be reached;
  // `to` must be its number when given. Nobody goes back where one could not. What follows in the fleet is that
  // version: who could not be reached is behind.
  //
  // FailedPrecondition "publish_in_progress"; "no_kept_version" | "kept_differs"; NotFound "version_not_kept"
  // Unavailable "no_replica"  none can be reached
  virtual Result<FleetRollback> RollBack(std::optional<std::uint64_t> to, Deadline deadline) = 0;

  // Where rank 0 of a group listens; empty without a group and on other ranks.
  virtual std::string group_address() const = 0;
  virtual PublisherStatus status() const = 0;
  virtual std::vector<PublishReport> History() const = 0;  // oldest first; see PublishHistory
  // As WeightReceiver::WaitForChange.
  virtual Result<std::uint64_t> WaitForChange(std::uint64_t seen, Deadline deadline) const = 0;
};

}  // namespace bascule
