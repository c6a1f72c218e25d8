// Keeps an engine at what the cache daemon of its host has: the first version, so that it starts in the time of a
// mapping, and every one that becomes live in the daemon while the engine is attached, its rollbacks included. Versions
// that reach the engine by other ways are left alone: what is older than the live version is not followed.
//
// An engine whose daemon is gone goes on with what it has mapped, and attaches again when there is one: of a daemon
// that has started anew it takes only what continues its own run.
//
// Thread-safety: confined to its owner; a thread of its own follows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/worker.h"
#include "checkpoint/artifact_manifest.h"
#include "engine_side/cache_daemon/cache_client.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

struct CacheFollowerOptions {
  std::string socket;
  ArtifactFingerprint fingerprint;      // of the engine
  bool check = true;                    // LentMemory::check
  std::optional<std::uint64_t> number;  // that version, and no later one
  bool follow = true;                   // else the first version is all
  Duration adopt_timeout = std::chrono::minutes(10);
  Duration first_retry = std::chrono::milliseconds(500);
  Duration retry_cap = std::chrono::seconds(10);
};

class CacheFollower {
 public:
  // `receiver` is borrowed.
  CacheFollower(CacheFollowerOptions options, WeightReceiver& receiver, Clock& clock = Clock::Real());
  ~CacheFollower();

  // Connects, waits for the daemon's first version and makes it live; from then on the thread follows. After an error
  // nothing is live and nothing follows.
  //
  // FailedPrecondition "fingerprint_mismatch" | "layout_mismatch"  the daemon is of another model or cut: both
  // DeadlineExceeded   "deadline"                                  it has no version, says the message
  // as CacheClient::Connect ("daemon_absent"), CacheClient::Next and WeightReceiver::Adopt
  Result<WeightVersion> Attach(Deadline deadline, const std::stop_token& stop);

 private:
  // False: it is live here, or older than what is.
  bool Wanted(const HandedOut& handed_out, const ReceiverStatus& status) const;
  Status Take(const HandedOut& handed_out, Deadline deadline, const std::stop_token& stop);
  Status TakeOnce(const HandedOut& handed_out, const ReceiverStatus& status, Deadline deadline,
                  const std::stop_token& stop);
  Status CheckMatch(const HandedOut& handed_out) const;
  void Follow(const std::stop_token& stop);
  // Takes what comes over `client` until it ends; returns why.
  Status FollowOver(CacheClient& client, const std::stop_token& stop);
  std::shared_ptr<CacheClient> Reconnect(const std::stop_token& stop);

  const CacheFollowerOptions options_;
  WeightReceiver& receiver_;
  Clock& clock_;
  std::shared_ptr<CacheClient> client_;  // shared with who cancels it
  Worker worker_;
};

}  // namespace bascule
