// One stream of a device and the memory through which it works on slots, in two batches: while the device works on one
// the host fills the other. A batch is a table of boxes, one digest for each, and the bytes of those that come from the
// host; all of it lies twice, in pinned memory and on the device.
//
// Thread-safety: confined to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "device/device.h"
#include "engine_side/slot_work.h"
#include "kernels/box_moves.h"
#include "kernels/device_kernels.h"

namespace bascule {

// What the lanes of a device have, in one piece each.
struct LaneMemory {
  std::unique_ptr<DeviceBuffer> pinned, on_device;
};

// Errors are those of SlotWork. After one, work may still be under way, and Drain comes before anything else.
class DeviceLane {
 public:
  // `device`, whose kernels these are, outlives it. The lane's memory is `memory` from `begin` on,
  // BytesOf(staged_bytes) of it: at most `staged_bytes` of boxes are in a batch.
  static Result<std::unique_ptr<DeviceLane>> Create(Device& device, const DeviceKernels& kernels,
                                                    std::shared_ptr<const LaneMemory> memory, std::size_t begin,
                                                    std::int64_t staged_bytes, Clock& clock);
  static std::size_t BytesOf(std::int64_t staged_bytes);

  // As SlotWork, for memory of this device. `digests` has one for each box, to which that of the box is added.
  Status PlaceAndDigest(std::span<const Placement> boxes, FrameMemory from, std::span<TensorDigest> digests);
  Status Digest(std::span<const SlotSource> boxes, std::span<TensorDigest> digests);
  Status Zero(std::span<const SlotTarget> boxes);
  Status Read(std::span<const SlotSource> boxes, std::span<std::byte> to);

  // Waits until nothing is under way.
  Status Drain();
  DeviceStream& stream() { return *stream_; }

 private:
  // What the launch of a batch does with its boxes.
  enum class Work { kMoveAndDigest, kDigest, kMove, kRead };

  // Of the table: a box, or a piece of one that comes from the host or goes there.
  struct Entry {
    std::size_t box = 0;  // of those that the call was given
    std::int64_t offset = 0;
    std::size_t bytes = 0;  // in the batch; 0: the device has both places
  };
  struct Batch {
    std::span<std::byte> pinned, on_device;  // digests, then the table, then bytes
    std::unique_ptr<DeviceEvent> done;
    BoxMoveTable table;
    std::vector<Entry> entries;
    std::int64_t end = 0;  // of the bytes
    bool is_enqueued = false;
  };

  DeviceLane(const DeviceKernels& kernels, std::shared_ptr<const LaneMemory> memory, std::int64_t staged_bytes,
             Clock& clock)
      : kernels_(kernels), memory_(std::move(memory)), staged_bytes_(staged_bytes), clock_(clock) {}
  std::int64_t PieceBytes() const;

  void Begin(Work work, std::span<TensorDigest> digests, std::span<std::byte> read);
  static void Clear(Batch& batch);
  // Where the next piece, of so many bytes, lies in the current batch.
  Result<std::int64_t> Reserve(std::int64_t bytes, std::int64_t logical_byte);
  Status Add(const BoxMove& move, std::size_t box, std::int64_t offset, std::int64_t bytes);
  Status AddFromHost(const Placement& piece, std::size_t box);
  // Enqueues what the batch has, and goes on with the other one, which is done then.
  Status NextBatch();
  Status Enqueue(Batch& batch);
  Status Launch(const Batch& batch);
  Status Collect(Batch& batch);
  Status Finish();

  const DeviceKernels& kernels_;
  const std::shared_ptr<const LaneMemory> memory_;  // shared by the lanes of a device, until the last has no work
  const std::int64_t staged_bytes_;
  Clock& clock_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> drained_;
  std::array<Batch, 2> batches_;
  std::size_t current_ = 0;

  // Of the call under way.
  Work work_ = Work::kDigest;
  std::span<TensorDigest> digests_;
  std::span<std::byte> read_;  // what is still to be read
};

}  // namespace bascule
