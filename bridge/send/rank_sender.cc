#include "bridge/send/rank_sender.h"

#include <utility>

namespace bascule {

RankSender::RankSender(const BucketPacker& packer, std::span<const std::unique_ptr<BucketSender>> routes,
                       SessionId session, Deadline deadline, SendPacer* pacer, std::stop_token stop)
    : packer_(packer),
      routes_(routes),
      session_(session),
      deadline_(deadline),
      pacer_(pacer),
      stop_(std::move(stop)),
      totals_(packer.plan().tensors.size()),
      under_way_(packer.plan().buckets.size()),
      unacknowledged_(routes.size()) {}

Status RankSender::Run(std::span<const std::uint32_t> buckets, std::uint32_t attempt) {
  const std::span<TensorDigest> totals = attempt == 0 ? std::span<TensorDigest>(totals_) : std::span<TensorDigest>();
  const std::unique_ptr<BoxReader> reader = packer_.Read(buckets);
  for (const std::uint32_t bucket : buckets) {
    const std::int32_t route = packer_.plan().buckets[bucket].route;
    while (!SenderOf(route).HasCredit()) RETURN_IF_ERROR(TakeAck(route));
    RETURN_IF_ERROR(SendBucket(bucket, attempt, *reader, totals));
  }
  for (std::size_t route = 0; route < unacknowledged_.size(); ++route) {
    while (unacknowledged_[route] > 0) RETURN_IF_ERROR(TakeAck(static_cast<std::int32_t>(route)));
  }
  return OkStatus();
}

Status RankSender::SendOnceMore(std::uint32_t bucket) {
  const std::unique_ptr<BoxReader> reader = packer_.Read({&bucket, 1});
  return SendBucket(bucket, 1, *reader, {});
}

Status RankSender::SendBucket(std::uint32_t bucket, std::uint32_t attempt, BoxReader& reader,
                              std::span<TensorDigest> totals) {
  if (stop_.stop_requested()) return Status::Cancelled("cancelled");
  const std::int32_t route = packer_.plan().buckets[bucket].route;
  BucketSender& sender = SenderOf(route);
  const auto frame_bytes = static_cast<std::size_t>(packer_.FrameBytesOf(bucket));
  if (pacer_ != nullptr) RETURN_IF_ERROR(pacer_->Pass(static_cast<std::int64_t>(frame_bytes), deadline_, stop_));
  RETURN_IF_ERROR(
      HandOver({.session = session_, .bucket = bucket, .attempt = attempt, .has_checksum = sender.wants_checksum()},
               reader, totals));
  under_way_[bucket] = attempt + 1;
  ++unacknowledged_[static_cast<std::size_t>(route)];
  wire_bytes_ += static_cast<std::int64_t>(frame_bytes);
  return OkStatus();
}

Status RankSender::HandOver(const BucketHeader& header, BoxReader& reader, std::span<TensorDigest> totals) {
  BucketSender& sender = SenderOf(packer_.plan().buckets[header.bucket].route);
  if (sender.TakesViews() && packer_.CanName(header.bucket, reader)) {
    const auto head_bytes = static_cast<std::size_t>(packer_.HeadBytesOf(header.bucket));
    std::vector<BoxView> payload;
    const Status named = packer_.Name(header, reader, sender.Acquire().first(head_bytes), payload, totals);
    source_failed_ = !named.ok();
    RETURN_IF_ERROR(named);
    return sender.SendViews(head_bytes, std::move(payload));
  }
  const auto frame_bytes = static_cast<std::size_t>(packer_.FrameBytesOf(header.bucket));
  const Status packed = packer_.Pack(header, reader, sender.Acquire().first(frame_bytes), totals);
  source_failed_ = !packed.ok();
  RETURN_IF_ERROR(packed);
  return sender.Send(frame_bytes);
}

Status RankSender::TakeAck(std::int32_t route) {
  if (stop_.stop_requested()) return Status::Cancelled("cancelled");
  ASSIGN_OR_RETURN(const BucketAck ack, SenderOf(route).NextAck(deadline_));
  RETURN_IF_ERROR(CheckAck(ack, route));
  --unacknowledged_[static_cast<std::size_t>(route)];
  if (ack.bucket == kNoBucket) return OkStatus();  // the seal finds out which one it was
  under_way_[ack.bucket] = 0;
  switch (ack.verdict) {
    case BucketVerdict::kGood:
    case BucketVerdict::kDuplicate:
      return OkStatus();
    case BucketVerdict::kDamaged:
      if (ack.attempt == 0) return SendOnceMore(ack.bucket);
      return Status::DataLoss("bucket_damaged", fmt::format("bucket={} was damaged twice", ack.bucket));
    case BucketVerdict::kFenced:
      return Status::Aborted("fenced", fmt::format("bucket={} of a session that is over", ack.bucket));
  }
  return Status::DataLoss("bad_ack", fmt::format("verdict={}", static_cast<int>(ack.verdict)));
}

Status RankSender::CheckAck(const BucketAck& ack, std::int32_t route) const {
  if (unacknowledged_[static_cast<std::size_t>(route)] == 0) {
    return Status::DataLoss("bad_ack",
                            fmt::format("bucket={} though nothing is under way on route {}", ack.bucket, route));
  }
  if (ack.bucket == kNoBucket && ack.verdict == BucketVerdict::kDamaged) return OkStatus();
  if (ack.bucket < under_way_.size() && packer_.plan().buckets[ack.bucket].route == route &&
      under_way_[ack.bucket] == ack.attempt + 1) {
    return OkStatus();
  }
  return Status::DataLoss(
      "bad_ack", fmt::format("bucket={} attempt={} is not under way on route {}", ack.bucket, ack.attempt, route));
}

}  // namespace bascule
