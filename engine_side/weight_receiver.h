// Stage: staging (transport -> [staging] -> verify -> flip)
//
// The engine's end of the bridge for one replica: takes sessions from publishers, stages a version beside the live one,
// verifies every byte, flips at a safe point on all ranks at once, and rolls back. An engine embeds it with EngineHooks
// and a layout; decode reads weights through leases.
//
//   auto receiver = WeightReceiver::Create(options, hooks);
//   ... a server calls receiver->Serve(channel) for each control connection ...
//   WeightLease lease = receiver->AcquireLive();   // in each decode step
//
// Invariants I1-I10 of docs/protocol.md hold. A failure before the flip changes nothing live.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/session/control.h"
#include "bridge/session/messages.h"
#include "bridge/session/session_state.h"
#include "bridge/transport/transport.h"
#include "device/device.h"
#include "engine_side/block_exchange.h"
#include "engine_side/device_slot_work.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/flip_mode.h"
#include "engine_side/history.h"
#include "engine_side/lent_memory.h"
#include "engine_side/live_digest.h"
#include "engine_side/staging_throttle.h"
#include "engine_side/stall_budget.h"
#include "engine_side/weight_lease.h"
#include "engine_side/weight_slots.h"

namespace bascule {

// A verified version in memory of this host that its holder lends to a receiver.
struct LentVersion {
  WeightVersion version;
  std::vector<TensorDigest> digests;  // of the logical tensors, in layout order
  LentMemory memory;                  // nobody changes it as long as it is lent
};

struct WeightReceiverOptions {
  std::string model;  // compared with the offer's when both are given
  Layout layout;      // what the ranks of this process hold; all engine ranks of the replica
  // Per engine rank, what EngineHooks::Finalize makes of each version; a lease shows these behind the rank's tensors.
  // Empty: nothing. See engine_side/derived_tensors.h.
  std::vector<std::vector<LocalTensor>> derived;
  std::vector<QuantizationFamily> families;  // of its tensors; an offer has the same
  SlotMemory memory;                         // where slots have theirs, on the host
  // Of each engine rank, the device whose memory has its slots; ranks may share one. Empty: the host's has them. A
  // lease then shows addresses for that device. Borrowed: they outlive the receiver.
  std::vector<Device*> devices;
  DeviceStaging device_staging;
  int slot_count = 2;  // 2, or (kShadow) 3 to keep a way back while the next version stages
  FlipMode flip = FlipMode::kShadow;
  StallBudget stall_budget;
  BlockCopier* copier = nullptr;   // for kInPlace; borrowed, null: memcpy, or the devices' copies
  bool full_tensors_only = false;  // from one sender, in the order of the layout; others are refused by that name
  StagingThreads staging;
  std::int32_t max_credits = 8;       // per route
  std::size_t max_connections = 256;  // at a time; others are refused ("too_many_callers")
  // Listeners of the transports this engine takes, best first. Borrowed: they outlive the receiver.
  std::vector<TransportListener*> listeners;
  Duration max_session = std::chrono::minutes(30);  // bound on a deadline that a publisher asks for
  Clock* clock = &Clock::Real();
};

struct SessionProgress {
  SessionState state = SessionState::kIdle;
  SessionId session;
  WeightVersion version;  // digest zero until sealed
  std::int64_t received_bytes = 0;
  std::int64_t total_bytes = 0;    // to receive
  std::int64_t carried_bytes = 0;  // of a partial version: copied from the live one
};

struct ReceiverStatus {
  std::optional<WeightVersion> live;
  std::chrono::system_clock::time_point live_since;
  std::optional<WeightVersion> kept;
  std::optional<SessionProgress> session;
  Status last_error;                     // OK when none yet
  std::vector<std::int64_t> slot_bytes;  // per engine rank
  std::uint64_t flip_count = 0;          // flips and rollbacks, not the initial load
  double stall_us_p50 = 0, stall_us_p99 = 0, stall_us_max = 0;
  std::uint64_t newest_seen = 0;  // highest number offered in the live run: staleness = newest_seen - live
  // What the fleet has committed and this replica lacks: it stays out of rotation until that or a newer one is live.
  std::optional<WeightVersion> required;

  bool Ready() const { return live.has_value() && !required.has_value(); }
};

struct StatusChanges {
  std::uint64_t mark = 0;                // of the newest
  std::vector<ReceiverStatus> statuses;  // oldest first, the newest is the last; never empty
};

class WeightReceiver {
 public:
  // `hooks` are borrowed.
  //
  // InvalidArgument "bad_layout" | "bad_options"; ResourceExhausted "slot_memory"; errors of the devices, and as
  // LoadDeviceKernels
  static Result<std::unique_ptr<WeightReceiver>> Create(WeightReceiverOptions options, EngineHooks& hooks);
  // Ends every connection (their peers see "peer_lost"), aborts the open session, waits for Serve calls to return.
  virtual ~WeightReceiver() = default;

  // Runs one control connection until it ends; returns why. The first version committed is the initial load.
  virtual Status Serve(ControlChannel& channel) = 0;

  // Makes a version live that lies in memory already, in the layout of the receiver, by a session like any other: the
  // slot shows the lent memory, which is digested where it lies, proven and flipped to; nothing is copied. The memory
  // is let go when its slot gets another version. Slots on devices get a copy, which is proven in any case; then the
  // memory is let go at once.
  //
  // FailedPrecondition "slot_read_only"  flips in place write to every slot of host memory
  // InvalidArgument    "bad_lent_memory" not a slot's bytes of each rank; as CheckOffer
  // as SessionRegistry::Open, WeightSlots::ReserveLent, Verifier::Check and FlipGate::Flip; Cancelled "cancelled"
  virtual Result<FlipReport> Adopt(LentVersion version, Deadline deadline, std::stop_token stop = {}) = 0;

  // Weights for one decode step; empty while nothing is live.
  [[nodiscard]] virtual WeightLease AcquireLive() = 0;

  // Back to the kept version at the next safe point; `to` must be its number when given. What was live is kept then,
  // and a second rollback goes forward to it again, unless it is `refused`.
  //
  // FailedPrecondition "no_kept_version" | "flip_in_progress"; NotFound "version_not_kept"; DeadlineExceeded "deadline"
  virtual Result<FlipReport> Rollback(std::optional<std::uint64_t> to, Deadline deadline, bool refused = false) = 0;

  // Digests of the *live memory*, read now through the engine's map under a lease.
  //
  // Replicas that differ from their owners are listed: the totals are the owners'.
  //
  // FailedPrecondition "nothing_live"
  // DataLoss "digest_mismatch"  a derived tensor is not what Finalize made; errors of SlotWork
  virtual Result<MemoryDigest> DigestLive() = 0;

  // The fleet has committed `version`: while it is not live this replica is not ready. It serves on, for whoever asks.
  // A version whose digest is zero is told by run and number alone.
  virtual void Require(const WeightVersion& version) = 0;
  // The same, unless another version than `live` is live by now: whoever says this knew only of that one.
  virtual void RequireInPlaceOf(const std::optional<WeightVersion>& live, const WeightVersion& version) = 0;

  virtual ReceiverStatus status() const = 0;
  virtual std::vector<HistoryEntry> History() const = 0;  // oldest first; the newest 10 000 are kept
  // Every status since the one with mark `seen`, one for each change of the session's state or of a version; waits
  // while there is none. With 0: the newest, at once. Who comes late gets the newest 256.
  //
  // DeadlineExceeded "deadline"; Cancelled "cancelled" (the receiver ends)
  virtual Result<StatusChanges> ChangesSince(std::uint64_t seen, Deadline deadline) const = 0;
  // As ChangesSince, for the mark alone.
  Result<std::uint64_t> WaitForChange(std::uint64_t seen, Deadline deadline) const {
    ASSIGN_OR_RETURN(const StatusChanges changes, ChangesSince(seen, deadline));
    return changes.mark;
  }
  virtual const Layout& layout() const = 0;
};

}  // namespace bascule
