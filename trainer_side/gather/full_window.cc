#include "trainer_side/gather/full_window.h"

#include <utility>

#include "kernels/pack.h"

namespace bascule {

WindowAssembly::WindowAssembly(const GatherPlan& plan, const std::vector<DigestKey>& keys, SessionId session,
                               FullWindow& target)
    : plan_(plan),
      window_(plan.windows()[static_cast<std::size_t>(target.window())]),
      keys_(keys),
      session_(session),
      target_(target),
      arrived_(window_.bucket_count),
      damaged_(window_.bucket_count),
      totals_(static_cast<std::size_t>(window_.tensor_count)) {}

Result<BucketAck> WindowAssembly::Take(std::int32_t route, std::span<const std::byte> frame) {
  const Result<BucketHeader> header = ParseBucketHeader(frame);
  if (!header.ok()) return Status::DataLoss("bucket_damaged", header.status().ToString());
  RETURN_IF_ERROR(CheckBucket(route, *header));
  const std::size_t index = header->bucket - window_.first_bucket;
  BucketAck ack{.bucket = header->bucket, .attempt = header->attempt, .verdict = BucketVerdict::kGood};
  const Status placed = Place(*header, frame);
  if (placed.ok()) {
    arrived_[index] = true;
    return ack;
  }
  if (damaged_[index]) {
    return Status::DataLoss("bucket_damaged",
                            fmt::format("bucket={} came damaged twice: {}", header->bucket, placed.ToString()));
  }
  damaged_[index] = true;
  ack.verdict = BucketVerdict::kDamaged;
  return ack;
}

Status WindowAssembly::CheckBucket(std::int32_t route, const BucketHeader& header) const {
  const std::uint32_t index = header.bucket - window_.first_bucket;  // wraps for those before
  if (header.session == session_ && index < window_.bucket_count && !arrived_[index]) {
    const Bucket& bucket = plan_.plan().buckets[header.bucket];
    if (bucket.route == route && std::cmp_equal(header.slice_count, bucket.slices.size()) &&
        header.payload_bytes == bucket.payload_bytes) {
      return OkStatus();
    }
  }
  return Status::DataLoss("bucket_outside_plan",
                          fmt::format("bucket={} slices={} payload_bytes={} on route {} while buckets {} to {} are "
                                      "gathered",
                                      header.bucket, header.slice_count, header.payload_bytes, route,
                                      window_.first_bucket, window_.first_bucket + window_.bucket_count));
}

Status WindowAssembly::Place(const BucketHeader& header, std::span<const std::byte> frame) {
  RETURN_IF_ERROR(CheckPayload(header, frame));
  const Plan& plan = plan_.plan();
  const auto payload = frame.subspan(static_cast<std::size_t>(PayloadOffset(header.slice_count)));
  std::vector<TensorDigest> digests;
  for (const Slice& slice : plan.buckets[header.bucket].slices) {
    const TensorDigest sent = ReadSliceDigest(frame, static_cast<std::int64_t>(digests.size()));
    const auto tensor = static_cast<std::size_t>(slice.tensor);
    const Dims& shape = plan.tensors[tensor].shape;
    digests.push_back(UnpackAndDigestOnHost(
        keys_[tensor], ShapeOf(slice.engine_box), ItemBytes(plan.tensors[tensor].dtype),
        payload.subspan(static_cast<std::size_t>(slice.payload_offset), static_cast<std::size_t>(slice.payload_bytes)),
        target_.Tensor(slice.tensor), PlaceIn(slice.engine_box, shape), PlaceIn(slice.logical_box, shape)));
    if (digests.back() == sent) continue;
    return Status::DataLoss("digest_mismatch",
                            fmt::format("tensor {} box {}", plan.tensors[tensor].name, slice.logical_box.ToString()));
  }
  for (std::size_t s = 0; s < digests.size(); ++s) {
    const Slice& slice = plan.buckets[header.bucket].slices[s];
    if (slice.counts) totals_[static_cast<std::size_t>(slice.tensor - window_.first_tensor)] += digests[s];
  }
  return OkStatus();
}

}  // namespace bascule
