// Stage: send (plan -> [send] -> transport)
//
// Packs buckets whose slices lie in a device's memory: one launch a bucket copies, converts and digests, each on a
// stream of its own, so that several are under way. The payload goes straight into a frame on the device, or into
// pinned memory, from where the host carries it into a frame of its own; digests always come to the host.
//
// Thread-safety: confined to the sending thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "bridge/send/bucket_packer.h"
#include "bridge/send/weight_device.h"

namespace bascule {

class DevicePacker {
 public:
  // For buckets of `packer`, whose source has `device`; both borrowed. `stop` ends waits with Cancelled "cancelled".
  DevicePacker(const BucketPacker& packer, WeightDevice& device, Deadline deadline, std::stop_token stop);
  // Waits until nothing of the source is read any more.
  ~DevicePacker();

  // Another bucket may be begun, and there is still one place left for a bucket that goes once more.
  bool HasRoom() const;
  // Enqueues the packing of `bucket` and gives its place. `target` is memory of the device for its payload; empty: the
  // host carries it. Errors of the device.
  Result<int> Begin(std::uint32_t bucket, std::span<std::byte> target);
  // What a begun bucket is packed on.
  DeviceStream& stream(int place) const { return *places_[static_cast<std::size_t>(place)].bench->stream; }
  // A frame, and the header of its bucket: the one that was begun, or a twin of it.
  struct Frame {
    BucketHeader header;
    std::span<std::byte> bytes;
  };
  // Waits until the bucket is packed, fills each of `frames` as BucketPacker::Pack does, or, of one with a target, its
  // head alone, and frees the place.
  //
  // DeadlineExceeded "device_deadline"; Cancelled "cancelled"; errors of the device
  Status Finish(int place, std::span<const Frame> frames, std::span<TensorDigest> totals);

 private:
  struct Place {
    std::unique_ptr<DeviceBench> bench;
    bool busy = false;
    bool carries = false;  // the payload comes to the host
  };
  Status Enqueue(DeviceBench& bench, std::uint32_t bucket, std::span<std::byte> target);
  Status AwaitPacked(DeviceBench& bench) const;

  const BucketPacker& packer_;
  WeightDevice& device_;
  const Deadline deadline_;
  const std::stop_token stop_;
  std::array<Place, 4> places_;
};

}  // namespace bascule
