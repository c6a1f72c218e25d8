// How a simulated engine comes by its first version and stays in touch, as the program does it: from the cache daemon
// of its host, from its fleet, from a peer, or else from its files.
//
// Thread-safety: confined to one thread; its functions run on fibers of the engine's process.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "engine_side/cache_daemon/cache_follower.h"
#include "engine_side/fleet_member.h"
#include "engine_side/weight_receiver.h"
#include "tests/simulation/watch.h"

namespace bascule::simulation {

class EngineNode;

// What an engine can reach of the world around it.
struct EngineSurroundings {
  std::function<std::shared_ptr<EngineNode>(const std::string& address)> engine_at;  // null: nobody is there
  std::function<Result<FleetWelcome>(const FleetHeartbeat&, Deadline)> join;
  std::function<Status(const std::string& address, InstanceId, Deadline)> leave;
  // Has the engine at `holder` send what it has to `address`.
  std::function<Status(const std::string& holder, const PeerRequest&, Deadline)> fetch;
};

struct EngineStartOptions {
  std::string address;
  int ranks = 1;
  std::string daemon;            // address of the cache daemon that it follows; empty: none
  std::string socket;            // of that
  bool check = true;             // CacheFollowerOptions::check
  bool joins = false;            // it is a member of the fleet
  std::function<Status()> load;  // its files; empty: it has none
};

class EngineStart final : private FleetLink {
 public:
  EngineStart(EngineStartOptions options, const EngineSurroundings& surroundings, WeightReceiver& receiver, Watch watch,
              Clock& clock);
  ~EngineStart() override;

  // Until it has begun, again and again, as its supervisor would have it.
  void Run(const std::stop_token& stop);

  // What it has heard last while it waits for its fleet's version; none: it has begun, or has not joined.
  std::optional<FleetWelcome> waits_for() const { return waits_for_; }

  static ArtifactFingerprint Fingerprint(int ranks);

 private:
  Status Begin(const std::stop_token& stop);
  Status AttachToDaemon(const std::stop_token& stop);
  Status JoinFleet(const std::stop_token& stop);
  Status AwaitReady(const std::stop_token& stop);
  // Of the first of the holders that has it.
  Status FetchFrom(const FleetWelcome& welcome);

  Result<FleetWelcome> Join(const FleetHeartbeat& heartbeat, Deadline deadline) override;
  Status Leave(const std::string& address, InstanceId instance, Deadline deadline) override;

  const EngineStartOptions options_;
  const EngineSurroundings& surroundings_;
  WeightReceiver& receiver_;
  const Watch watch_;
  Clock& clock_;
  // What the last heartbeat said where its answer required something else.
  std::optional<WeightVersion> live_when_required_;
  std::size_t rows_when_required_ = 0;
  std::optional<FleetWelcome> waits_for_;
  std::unique_ptr<FleetMember> member_;
  std::unique_ptr<CacheFollower> follower_;
};

}  // namespace bascule::simulation
