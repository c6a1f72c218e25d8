// One sending rank at work: packs its buckets in plan order into free frames of its routes and follows every frame to
// its acknowledgement. Where the weights lie on a device several buckets are packed at once, and sent in plan order;
// twins are packed once, and go at once where the transport carries them so.
//
// Thread-safety: confined to one sending thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/send/bucket_packer.h"
#include "bridge/send/cast_set.h"
#include "bridge/send/device_packer.h"
#include "bridge/send/send_pacer.h"
#include "bridge/transport/transport.h"

namespace bascule {

class RankSender {
 public:
  // `stop` ends Run before the next bucket. `pacer` is borrowed, and null: as fast as it goes; so is `casts`, and null:
  // every bucket goes alone.
  RankSender(const BucketPacker& packer, std::span<const std::unique_ptr<BucketSender>> routes, SessionId session,
             Deadline deadline, SendPacer* pacer, std::stop_token stop, const CastSet* casts = nullptr);

  // Sends `buckets` and returns when every one is acknowledged. Errors: see SendPipeline::Finish. Only buckets of the
  // first attempt add to the totals.
  Status Run(std::span<const std::uint32_t> buckets, std::uint32_t attempt);

  const std::vector<TensorDigest>& totals() const { return totals_; }
  std::int64_t wire_bytes() const { return wire_bytes_; }
  // Run failed because its own source could not be read, which no peer can explain.
  bool source_failed() const { return source_failed_; }

 private:
  // A bucket that a device packs, or several twins.
  struct Begun {
    std::uint32_t bucket = 0;  // the first
    std::uint32_t twins = 1;
    std::uint32_t attempt = 0;
    BucketCast* cast = nullptr;          // takes the twins; null: there is one bucket
    int place = 0;                       // of the packer's
    std::optional<std::uint32_t> frame;  // put by, where its payload goes; none: the host carries it
  };

  Status SendFromHost(std::span<const std::uint32_t> buckets, std::uint32_t attempt, std::span<TensorDigest> totals);
  Status SendFromDevice(std::span<const std::uint32_t> buckets, std::uint32_t attempt, std::span<TensorDigest> totals);
  Status AwaitAcks();

  Status SendBucket(std::uint32_t bucket, std::uint32_t attempt, BoxReader& reader, std::span<TensorDigest> totals);
  // Packs a bucket into a frame and sends it, or has the frame name where the bucket's slices lie.
  Status HandOver(const BucketHeader& header, BoxReader& reader, std::span<TensorDigest> totals);
  // The next of `buckets`, with the twins that can go with it.
  Begun NextOf(std::span<const std::uint32_t> buckets, std::uint32_t attempt) const;
  // Waits until every route that `next` goes has a frame, where frames lie on the device.
  Status AwaitFrames(const Begun& next, std::span<TensorDigest> totals);
  // Has the device pack a bucket, into a frame that is free where frames lie there; and sends it once it is packed.
  Status Begin(Begun& begun);
  Status Finish(const Begun& begun, std::span<TensorDigest> totals);
  Status FinishCast(const Begun& begun, std::span<TensorDigest> totals);
  Status FinishPacking(const Begun& begun, std::span<const DevicePacker::Frame> frames, std::span<TensorDigest> totals);
  Status FinishOldest(std::span<TensorDigest> totals);

  // Before a bucket, and after it.
  Status Admit(std::uint32_t bucket);
  void NoteSent(std::uint32_t bucket, std::uint32_t attempt, std::int64_t bytes);
  BucketHeader HeaderOf(std::uint32_t bucket, std::uint32_t attempt) const;
  Status SendOnceMore(std::uint32_t bucket);
  // Waits for one acknowledgement of `route` and does what it asks for.
  Status TakeAck(std::int32_t route);
  Status CheckAck(const BucketAck& ack, std::int32_t route) const;
  std::int32_t RouteOf(std::uint32_t bucket) const { return packer_.plan().buckets[bucket].route; }
  BucketSender& SenderOf(std::int32_t route) const { return *routes_[static_cast<std::size_t>(route)]; }

  const BucketPacker& packer_;
  const std::span<const std::unique_ptr<BucketSender>> routes_;
  const SessionId session_;
  const Deadline deadline_;
  SendPacer* const pacer_;
  const std::stop_token stop_;
  const CastSet* const casts_;
  std::vector<TensorDigest> totals_;
  std::vector<std::uint32_t> under_way_;      // per bucket: attempt + 1 of the frame that is not acknowledged, or 0
  std::vector<std::int32_t> unacknowledged_;  // per route: frames
  std::int64_t wire_bytes_ = 0;
  bool source_failed_ = false;
  std::optional<DevicePacker> device_;  // while Run sends what lies on a device
  std::deque<Begun> begun_;             // in the order in which they are sent
};

}  // namespace bascule
