// An engine's end of the socket: takes versions from the cache daemon of its host.
//
// Thread-safety: confined to one thread, but for Cancel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bridge/transport/shm/message_socket.h"
#include "checkpoint/artifact_manifest.h"
#include "engine_side/cache_daemon/messages.h"
#include "engine_side/lent_memory.h"

namespace bascule {

// A version that a daemon hands out. What is said of it has been read as hostile; its memory has not been looked at.
struct HandedOut {
  std::uint64_t sequence = 0;
  CacheChange change = CacheChange::kHeld;
  WeightVersion version;
  ArtifactManifest manifest;
  std::vector<UniqueFd> ranks;

  // Maps it, once more each time.
  //
  // as MapFrozen
  Result<std::vector<std::unique_ptr<DeviceBuffer>>> Map() const;
};

class CacheClient {
 public:
  // Connects and is greeted. With a `number` that version is wanted and no other; else what is live, and what comes.
  //
  // NotFound           "daemon_absent"     there is no such file: the one case in which an engine may load from disk
  // InvalidArgument    "bad_socket_path"
  // Unavailable        "peer_unreachable"  nobody listens there, or not in time; "peer_lost"
  // PermissionDenied   "peer_credentials"  it is another user's
  // NotFound           "version_not_held"; FailedPrecondition "cache_protocol"; DataLoss "bad_message"
  // DeadlineExceeded   "deadline"
  static Result<std::unique_ptr<CacheClient>> Connect(const std::string& path, std::optional<std::uint64_t> number,
                                                      Deadline deadline, Clock& clock);

  InstanceId daemon() const { return daemon_; }
  CachePhase phase() const { return phase_; }  // when it greeted

  // Waits for the next version. Every one is reported on before the next is asked for.
  //
  // DeadlineExceeded "deadline"; Unavailable "peer_lost"; Cancelled "cancelled"
  // DataLoss "bad_message" | "bad_artifact" | "artifact_altered"; InvalidArgument "bad_object"
  Result<HandedOut> Next(Deadline deadline);
  Status Report(std::uint64_t sequence, const Status& outcome, const std::optional<WeightVersion>& live);

  // From any thread: Next fails from now on.
  void Cancel() { socket_.Cancel(); }

 private:
  CacheClient(MessageSocket socket, Clock& clock) : socket_(std::move(socket)), clock_(clock) {}
  Status Greet(std::optional<std::uint64_t> number, Deadline deadline);

  MessageSocket socket_;
  Clock& clock_;
  InstanceId daemon_;
  CachePhase phase_ = CachePhase::kEmpty;
};

}  // namespace bascule
