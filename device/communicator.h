// A communicator: a fixed set of devices, one rank each, of one process or of many, that move memory from device to
// device (NCCL). It is made once, outlives any number of moves, and when its members change another one is made.
//
// No call waits for a peer. What a call begins goes on by itself; Settled says how far it is, and AwaitSettled asks
// until a deadline. Enqueued moves run when their stream comes to them, and end when the peer's do: an event behind
// them tells. A peer that never comes is waited for until Abort.
//
// What runs on a device while it waits for a peer takes multiprocessors, so a communicator has a share of those: all of
// a process and device fit it together, and no order in which they are used can make them wait in a circle. There are
// so many and no more, "nccl_too_many" below.
//
// The id that joins the ranks is made by one of them and carried to the others by whoever uses this.
//
// Errors of NCCL, which any function that reaches it may return; the message has the rank, the call, and NCCL's own
// text. After one of them the communicator is good for Abort only:
//   Unavailable "nccl_remote_error"         a peer failed or is gone
//   Unavailable "nccl_system_error"         the network or the operating system said no
//   Internal "nccl_cuda_error"              CUDA failed under it
//   FailedPrecondition "nccl_invalid_usage" ranks that do not fit: two on one device, or moves that differ
//   Internal "nccl_error"                   anything else
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "device/collective.h"
#include "device/device.h"

namespace bascule {

// How many multiprocessors a communicator takes while it moves something, and a collective while it sums; powers of
// two, as NCCL likes them. All communicators of a device have three quarters of its multiprocessors together: of 132
// that is 49 that move, or 45 beside a collective. Both ends must ask for the same: another number is another nccl
// protocol.
inline constexpr int kMoveCtas = 2;
inline constexpr int kSumCtas = 8;

struct CommunicatorId {
  std::array<std::byte, 128> bytes{};
  friend bool operator==(const CommunicatorId&, const CommunicatorId&) = default;
};

// One part of a group: this memory of the communicator's device goes to `peer`, or comes from it.
struct Transfer {
  enum class Way { kSend, kReceive };
  Way way = Way::kSend;
  int peer = 0;
  std::span<std::byte> memory;
};

// Thread-safety: thread-safe; but all ranks must enqueue their moves in orders that fit.
class Communicator {
 public:
  // Aborts, unless it was closed or aborted before.
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // False while what was begun last, joining at first, is not done. Errors of NCCL, which may come at any time.
  virtual Result<bool> Settled() = 0;

  // The rest wants a settled communicator: FailedPrecondition "communicator_busy". Each may leave it unsettled, and
  // only when it has settled does its work lie in the stream: what is enqueued there before that may run before it.
  //
  // Memory that many moves will use; stays registered until the end.
  virtual Status Register(std::span<std::byte> memory) = 0;
  // Enqueues all of them as one: they go on side by side, and the stream goes on when all are done. The peers enqueue
  // what answers them, of the same sizes and in the same order.
  virtual Status Move(std::span<const Transfer> transfers, DeviceStream& stream) = 0;
  // Enqueues: `memory` of every rank becomes that of `root`.
  virtual Status Broadcast(std::span<std::byte> memory, int root, DeviceStream& stream) = 0;

  // What was enqueued is finished first. Where that does not happen in time it is aborted.
  //
  // DeadlineExceeded "nccl_deadline"; errors of NCCL; see Abort
  virtual Status Close(Deadline deadline, Clock& clock) = 0;
  // Ends everything at once, whatever the peers do; what was enqueued and is not done never will be. Afterwards no
  // memory is touched any more.
  //
  // DeadlineExceeded "nccl_stuck"  NCCL does not come back: what it uses must stay until the process ends
  virtual Status Abort(Deadline deadline, Clock& clock) = 0;
};

// Waits on the host until `communicator` has settled. `interrupted` is asked meanwhile, and ends the wait with what it
// says.
//
// DeadlineExceeded "nccl_deadline"  a peer has not come, or NCCL is not done; errors of NCCL
Status AwaitSettled(Communicator& communicator, Deadline deadline, Clock& clock,
                    const std::function<Status()>& interrupted = {});

// The library behind communicators, opened when it is first asked for.
//
// Thread-safety: thread-safe; lives until the program ends.
class Communicators {
 public:
  virtual ~Communicators() = default;
  virtual std::string version() const = 0;  // "2.28.9"

  // FailedPrecondition "nccl_comm_id"  NCCL_COMM_ID is set, which would make all ids the same; errors of NCCL
  virtual Result<CommunicatorId> NewId() = 0;
  // Begins to join as `rank` of `size`, with memory of `device`, which outlives it.
  //
  // ResourceExhausted "nccl_too_many"  others of this process have what `device` has for them, until they are closed
  //                                    or aborted; errors of NCCL
  virtual Result<std::unique_ptr<Communicator>> Join(Device& device, const CommunicatorId& id, int rank, int size) = 0;

  // Sums over devices of this process, rank r on devices[r]; waits until all ranks have joined. The devices outlive it,
  // and it outlives graphs that its sums were captured in. Destroying it ends sums that stand.
  //
  // FailedPrecondition "same_device"  two ranks on one device; DeadlineExceeded "nccl_deadline"; as Join
  virtual Result<std::unique_ptr<DeviceCollective>> MakeCollective(std::span<Device* const> devices, Deadline deadline,
                                                                   Clock& clock) = 0;
};

// That of the CUDA backend: $BASCULE_NCCL where that is set, else libnccl.so.2 wherever the dynamic linker looks.
//
// Unavailable "no_nccl"             this build has none, or it cannot be opened: where it was looked for, and why
// FailedPrecondition "nccl_too_old" with the version that is there and the one that is needed
// as LoadCudaBackend
Result<Communicators*> LoadCommunicators();

}  // namespace bascule

// The part "communicators" of a module: DeviceBackend::Part gives this function. Null: `why` says.
extern "C" [[gnu::visibility("default")]] bascule::Communicators* bascule_cuda_communicators(bascule::Status* why);
