#include "bridge/send/rank_sender.h"

#include <utility>

namespace bascule {

RankSender::RankSender(const BucketPacker& packer, std::span<const std::unique_ptr<BucketSender>> routes,
                       SessionId session, Deadline deadline, SendPacer* pacer, std::stop_token stop,
                       const CastSet* casts)
    : packer_(packer),
      routes_(routes),
      session_(session),
      deadline_(deadline),
      pacer_(pacer),
      stop_(std::move(stop)),
      casts_(casts),
      totals_(packer.plan().tensors.size()),
      under_way_(packer.plan().buckets.size()),
      unacknowledged_(routes.size()) {}

Status RankSender::Run(std::span<const std::uint32_t> buckets, std::uint32_t attempt) {
  const std::span<TensorDigest> totals = attempt == 0 ? std::span<TensorDigest>(totals_) : std::span<TensorDigest>();
  WeightDevice* const device = packer_.source().device();
  if (device == nullptr) return SendFromHost(buckets, attempt, totals);
  device_.emplace(packer_, *device, deadline_, stop_);
  const Status sent = SendFromDevice(buckets, attempt, totals);
  begun_.clear();
  device_.reset();  // nothing of the source is read any more
  return sent;
}

Status RankSender::SendFromHost(std::span<const std::uint32_t> buckets, std::uint32_t attempt,
                                std::span<TensorDigest> totals) {
  const std::unique_ptr<BoxReader> reader = packer_.Read(buckets);
  for (const std::uint32_t bucket : buckets) {
    const std::int32_t route = RouteOf(bucket);
    while (!SenderOf(route).HasCredit()) RETURN_IF_ERROR(TakeAck(route));
    RETURN_IF_ERROR(SendBucket(bucket, attempt, *reader, totals));
  }
  return AwaitAcks();
}

Status RankSender::SendFromDevice(std::span<const std::uint32_t> buckets, std::uint32_t attempt,
                                  std::span<TensorDigest> totals) {
  while (!buckets.empty()) {
    Begun next = NextOf(buckets, attempt);
    while (!device_->HasRoom()) RETURN_IF_ERROR(FinishOldest(totals));
    RETURN_IF_ERROR(AwaitFrames(next, totals));
    RETURN_IF_ERROR(Begin(next));
    begun_.push_back(next);
    buckets = buckets.subspan(next.twins);
  }
  while (!begun_.empty()) RETURN_IF_ERROR(FinishOldest(totals));
  return AwaitAcks();
}

RankSender::Begun RankSender::NextOf(std::span<const std::uint32_t> buckets, std::uint32_t attempt) const {
  const std::uint32_t first = buckets.front();
  const CastSet::Entry* const cast = attempt == 0 && casts_ != nullptr ? casts_->Find(first) : nullptr;
  // Buckets come in plan order, so the last of the twins is there only if all are.
  if (cast == nullptr || buckets.size() < cast->twins || buckets[cast->twins - 1] != first + cast->twins - 1) {
    return {.bucket = first, .attempt = attempt};
  }
  return {.bucket = first, .twins = cast->twins, .attempt = attempt, .cast = cast->cast};
}

Status RankSender::AwaitFrames(const Begun& next, std::span<TensorDigest> totals) {
  for (std::uint32_t bucket = next.bucket; bucket < next.bucket + next.twins; ++bucket) {
    const std::int32_t route = RouteOf(bucket);
    while (SenderOf(route).HasDevicePayload() && !SenderOf(route).HasCredit()) {
      RETURN_IF_ERROR(begun_.empty() ? TakeAck(route) : FinishOldest(totals));
    }
  }
  return OkStatus();
}

Status RankSender::AwaitAcks() {
  for (std::size_t route = 0; route < unacknowledged_.size(); ++route) {
    while (unacknowledged_[route] > 0) RETURN_IF_ERROR(TakeAck(static_cast<std::int32_t>(route)));
  }
  return OkStatus();
}

Status RankSender::SendOnceMore(std::uint32_t bucket) {
  if (device_) {
    Begun begun{.bucket = bucket, .attempt = 1};
    RETURN_IF_ERROR(Begin(begun));
    return Finish(begun, {});
  }
  const std::unique_ptr<BoxReader> reader = packer_.Read({&bucket, 1});
  return SendBucket(bucket, 1, *reader, {});
}

Status RankSender::SendBucket(std::uint32_t bucket, std::uint32_t attempt, BoxReader& reader,
                              std::span<TensorDigest> totals) {
  RETURN_IF_ERROR(Admit(bucket));
  RETURN_IF_ERROR(HandOver(HeaderOf(bucket, attempt), reader, totals));
  NoteSent(bucket, attempt, packer_.FrameBytesOf(bucket));
  return OkStatus();
}

Status RankSender::Admit(std::uint32_t bucket) {
  if (stop_.stop_requested()) return Status::Cancelled("cancelled");
  return pacer_ == nullptr ? OkStatus() : pacer_->Pass(packer_.FrameBytesOf(bucket), deadline_, stop_);
}

BucketHeader RankSender::HeaderOf(std::uint32_t bucket, std::uint32_t attempt) const {
  return {.session = session_,
          .bucket = bucket,
          .attempt = attempt,
          .has_checksum = SenderOf(RouteOf(bucket)).wants_checksum()};
}

void RankSender::NoteSent(std::uint32_t bucket, std::uint32_t attempt, std::int64_t bytes) {
  under_way_[bucket] = attempt + 1;
  ++unacknowledged_[static_cast<std::size_t>(RouteOf(bucket))];
  wire_bytes_ += bytes;
}

Status RankSender::Begin(Begun& begun) {
  RETURN_IF_ERROR(Admit(begun.bucket));
  BucketSender& sender = SenderOf(RouteOf(begun.bucket));
  std::span<std::byte> target;
  if (sender.HasDevicePayload()) {
    target = begun.cast != nullptr ? begun.cast->AcquireDevicePayload() : sender.AcquireDevicePayload();
  }
  const Result<int> place = device_->Begin(begun.bucket, target);
  source_failed_ = !place.ok();
  RETURN_IF_ERROR(place.status());
  begun.place = *place;
  if (target.empty()) return OkStatus();
  DeviceStream& filling = device_->stream(begun.place);
  ASSIGN_OR_RETURN(begun.frame, begun.cast != nullptr ? begun.cast->PutBy(filling) : sender.PutBy(filling));
  return OkStatus();
}

Status RankSender::Finish(const Begun& begun, std::span<TensorDigest> totals) {
  if (begun.cast != nullptr) return FinishCast(begun, totals);
  BucketSender& sender = SenderOf(RouteOf(begun.bucket));
  if (begun.frame) sender.TakeUp(*begun.frame);
  const auto frame_bytes =
      static_cast<std::size_t>(begun.frame ? packer_.HeadBytesOf(begun.bucket) : packer_.FrameBytesOf(begun.bucket));
  const DevicePacker::Frame frame{HeaderOf(begun.bucket, begun.attempt), sender.Acquire().first(frame_bytes)};
  RETURN_IF_ERROR(FinishPacking(begun, {&frame, 1}, totals));
  const auto payload_bytes = static_cast<std::size_t>(packer_.PayloadBytesOf(begun.bucket));
  RETURN_IF_ERROR(begun.frame ? sender.SendFilledOn(frame_bytes, payload_bytes, device_->stream(begun.place))
                              : sender.Send(frame_bytes));
  NoteSent(begun.bucket, begun.attempt, packer_.FrameBytesOf(begun.bucket));
  return OkStatus();
}

Status RankSender::FinishCast(const Begun& begun, std::span<TensorDigest> totals) {
  const auto head_bytes = static_cast<std::size_t>(packer_.HeadBytesOf(begun.bucket));
  begun.cast->TakeUp(*begun.frame);
  std::vector<DevicePacker::Frame> frames;
  for (std::uint32_t twin = 0; twin < begun.twins; ++twin) {
    frames.push_back({HeaderOf(begun.bucket + twin, begun.attempt), begun.cast->Head(twin).first(head_bytes)});
  }
  RETURN_IF_ERROR(FinishPacking(begun, frames, totals));
  const auto payload_bytes = static_cast<std::size_t>(packer_.PayloadBytesOf(begun.bucket));
  RETURN_IF_ERROR(begun.cast->SendFilledOn(head_bytes, payload_bytes, device_->stream(begun.place)));
  for (std::uint32_t twin = 0; twin < begun.twins; ++twin) {
    // The payload goes once.
    const std::uint32_t bucket = begun.bucket + twin;
    NoteSent(bucket, begun.attempt, twin == 0 ? packer_.FrameBytesOf(bucket) : packer_.HeadBytesOf(bucket));
  }
  return OkStatus();
}

Status RankSender::FinishPacking(const Begun& begun, std::span<const DevicePacker::Frame> frames,
                                 std::span<TensorDigest> totals) {
  const Status packed = device_->Finish(begun.place, frames, totals);
  source_failed_ = !packed.ok() && packed.code() != StatusCode::kCancelled;
  return packed;
}

Status RankSender::FinishOldest(std::span<TensorDigest> totals) {
  const Begun oldest = begun_.front();
  const std::int32_t route = RouteOf(oldest.bucket);
  while (!oldest.frame && !SenderOf(route).HasCredit()) RETURN_IF_ERROR(TakeAck(route));
  begun_.pop_front();
  return Finish(oldest, totals);
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
