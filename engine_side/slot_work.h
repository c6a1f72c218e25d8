// Stage: staging (transport -> [staging] -> verify -> flip)
//
// What the receive path does with the memory of slots, wherever that memory is: the host's, with loads and stores, or a
// device's, with kernels and copies on streams of its own (device_slot_work.h). Staging, verification, flips in place
// and whoever sends a live version on say which boxes; this says how.
//
// When a call has succeeded its work is done, and whoever learns of that sees it, on the host and on the device. After
// an error work of the call may still be under way, until Settle says that none is.
//
// Errors: none on the host. Of a device, those of device/device.h, and
//   DeadlineExceeded "device_deadline"  work is not done after kDevicePatience
//
// Thread-safety: thread-safe; boxes that are written by calls at the same time do not overlap.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/bucket/box_view.h"
#include "bridge/transport/transport.h"
#include "device/buffer.h"
#include "engine_side/block_exchange.h"
#include "kernels/box.h"
#include "kernels/digest.h"

namespace bascule {

// Far more than any piece of work takes beside decoding: what is not done by then never will be.
inline constexpr Duration kDevicePatience = std::chrono::seconds(30);

// A box of a logical tensor and where it lies in a local tensor of a slot.
struct SlotBox {
  int engine_rank = 0;
  BoxShape shape;
  int item_bytes = 1;
  BoxPlace place;    // in the local tensor
  BoxPlace logical;  // in the logical tensor
  DigestKey key;
};

// The box as it lies from `tensor` on, which is memory of a slot.
struct SlotSource {
  SlotBox box;
  const std::byte* tensor = nullptr;
};
struct SlotTarget {
  SlotBox box;
  std::byte* tensor = nullptr;
};

// What is to lie at a target.
struct Placement {
  SlotTarget to;
  BoxView from;
};

// Where bytes lie that come into a slot: in host memory, or in memory of the slot's device.
enum class FrameMemory { kHost, kDevice };

class SlotWork {
 public:
  virtual ~SlotWork() = default;

  // Where an engine rank's slots have their memory.
  virtual DeviceMemory& memory(int engine_rank) = 0;
  // The slots' memory is one that a host follows, so that it may be another's, lent.
  virtual bool OnHost() const = 0;

  // Copies every box to its place. Gives the digests of what was written there, in the same order, whatever happens to
  // the sources meanwhile. All boxes are of one engine rank; kDevice only where OnHost is false.
  virtual Result<std::vector<TensorDigest>> PlaceAndDigest(std::span<const Placement> boxes, FrameMemory from) = 0;
  // Of boxes as they lie in memory now.
  virtual Result<std::vector<TensorDigest>> Digest(std::span<const SlotSource> boxes) = 0;
  // Makes every byte of the boxes zero.
  virtual Status Zero(std::span<const SlotTarget> boxes) = 0;
  // Copies boxes of one engine rank to host memory, one after another, each in compact row-major order.
  virtual Status Read(std::span<const SlotSource> boxes, std::span<std::byte> to) = 0;

  // How memories of two slots, pairs of each engine rank, are exchanged.
  virtual Result<BlockExchange> MakeExchange(std::span<const std::vector<BlockExchange::Pair>> memory) = 0;

  // Gives a frame back to its sender, once no work of this reads it.
  virtual Status GiveBack(BucketReceiver& receiver, const ReceivedFrame& frame, const BucketAck& ack) = 0;
  // Waits for what calls that failed have left under way. OK: nothing is.
  virtual Status Settle() = 0;
};

// Digests with two threads where there is much to digest. Lives until the program ends.
SlotWork& HostSlotWork();

}  // namespace bascule
