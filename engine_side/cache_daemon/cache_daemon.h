// Stage: staging (daemon -> [staging] -> verify -> flip)
//
// Weights that outlive the engine: a receiver without a decoder holds verified versions in frozen memory, and this
// hands them to the engines of the host, which map them read-only and are live in the time of a mapping. The receiver
// takes versions as any replica does; its slots must have their memory from FreezableMemory(). What becomes live there
// is put on record, with a manifest as an artifact has one, and told to every engine that is attached.
//
// A daemon that is behind its fleet (ReceiverStatus::required) hands nothing out: nobody starts with what is old.
// Engines that have a version keep it, whatever becomes of the daemon.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/worker.h"
#include "checkpoint/artifact_manifest.h"
#include "engine_side/cache_daemon/cache_socket.h"
#include "engine_side/cache_daemon/version_store.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

struct CacheDaemonOptions {
  std::string socket;      // path; see ListenAtChosenPath
  int keep = 2;            // versions held: the live one and those before it, at least one
  ArtifactManifest model;  // of each version, but for its digests
  Clock* clock = &Clock::Real();
};

struct CacheDaemonStatus {
  struct Object {
    WeightVersion version;
    std::int64_t bytes = 0;
    bool live = false;
  };
  InstanceId instance;
  CachePhase phase = CachePhase::kEmpty;
  std::vector<Object> objects;  // the live one first
  std::vector<AttachedEngine> engines;
};

class CacheDaemon {
 public:
  // Listens from now on, also before there is a version. `receiver` is borrowed.
  //
  // InvalidArgument "bad_options"; as CacheSocket::Create
  static Result<std::unique_ptr<CacheDaemon>> Create(CacheDaemonOptions options, WeightReceiver& receiver);
  // Hangs up. Engines keep what they have mapped.
  virtual ~CacheDaemon() = default;

  virtual CacheDaemonStatus status() const = 0;
};

}  // namespace bascule
