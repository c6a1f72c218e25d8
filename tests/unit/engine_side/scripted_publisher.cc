#include "tests/unit/engine_side/scripted_publisher.h"

#include <algorithm>
#include <cstring>

#include "kernels/pack.h"

namespace bascule {
namespace {

MapRow Row(std::int32_t local, Box local_box, std::int32_t logical, Box logical_box) {
  return MapRow{local, std::move(local_box), logical, std::move(logical_box)};
}

// What a sending rank holds of a local tensor, dense.
std::vector<std::byte> LocalBytes(const Layout& layout, int rank, int tensor, std::uint64_t number) {
  const RankLayout& holder = layout.ranks[static_cast<std::size_t>(rank)];
  const LocalTensor& local = holder.tensors[static_cast<std::size_t>(tensor)];
  std::vector<std::byte> bytes(static_cast<std::size_t>(local.Bytes()));
  for (const MapRow& row : holder.rows) {
    if (row.local != tensor) continue;
    const Dims& shape = layout.tensors[static_cast<std::size_t>(row.logical)].shape;
    const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
    const std::int64_t box_columns = shape.size() == 2 ? row.logical_box.extent[1] : 1;
    const std::int64_t first_column = shape.size() == 2 ? row.logical_box.offset[1] : 0;
    for (std::int64_t i = 0; i < row.logical_box.Elements(); ++i) {
      const std::int64_t logical_row = row.logical_box.offset[0] + i / box_columns;
      const float value = ElementForTest(number, row.logical, logical_row * columns + first_column + i % box_columns);
      std::memcpy(bytes.data() + i * 4, &value, 4);
    }
  }
  return bytes;
}

}  // namespace

float ElementForTest(std::uint64_t number, int tensor, std::int64_t index) {
  const auto mixed = (number * 37 + static_cast<std::uint64_t>(tensor) * 101 + static_cast<std::uint64_t>(index) * 7);
  return static_cast<float>(mixed % 251) - 125.0F;  // eight significant bits
}

Layout EngineLayoutForTest() {
  Layout layout;
  layout.tensors = {
      {"a", DType::kF32, {64, 64}}, {"b", DType::kF32, {5}}, {"n", DType::kBf16, {8}}, {"v", DType::kF32, {66, 16}}};
  layout.ranks.resize(2);
  for (int r = 0; r < 2; ++r) {
    RankLayout& rank = layout.ranks[static_cast<std::size_t>(r)];
    const std::int64_t vocabulary = r == 0 ? 36 : 30;
    rank.tensors = {{"a", DType::kF32, {32, 64}, {}}, {"b", DType::kF32, {5}, {}}, {"v", DType::kF32, {36, 16}, {}}};
    rank.rows = {Row(0, Box::Whole({32, 64}), 0, Box{{32 * r, 0}, {32, 64}}),
                 Row(1, Box::Whole({5}), 1, Box::Whole({5})),
                 Row(2, Box{{0, 0}, {vocabulary, 16}}, 3, Box{{36 * r, 0}, {vocabulary, 16}})};
  }
  layout.ranks[1].rows.push_back(Row(2, Box{{30, 0}, {6, 16}}, kFill, Box{}));
  layout.ranks[0].tensors.push_back({"n", DType::kBf16, {8}, {}});
  layout.ranks[0].rows.push_back(Row(3, Box::Whole({8}), 2, Box::Whole({8})));
  return layout;
}

Layout SenderLayoutForTest() {
  Layout layout;
  layout.tensors = EngineLayoutForTest().tensors;
  layout.tensors[2].dtype = DType::kF32;
  layout.ranks.resize(2);
  for (int r = 0; r < 2; ++r) {
    RankLayout& rank = layout.ranks[static_cast<std::size_t>(r)];
    rank.tensors = {{"a", DType::kF32, {64, 32}, {}}, {"b", DType::kF32, {5}, {}}, {"v", DType::kF32, {33, 16}, {}}};
    rank.rows = {Row(0, Box::Whole({64, 32}), 0, Box{{0, 32 * r}, {64, 32}}),
                 Row(1, Box::Whole({5}), 1, Box::Whole({5})),
                 Row(2, Box::Whole({33, 16}), 3, Box{{33 * r, 0}, {33, 16}})};
  }
  layout.ranks[0].tensors.push_back({"n", DType::kF32, {8}, {}});
  layout.ranks[0].rows.push_back(Row(3, Box::Whole({8}), 2, Box::Whole({8})));
  return layout;
}

ScriptedPublisher::ScriptedPublisher(std::unique_ptr<ControlChannel> channel, TransportDialer& dialer, Clock& clock,
                                     InstanceId id)
    : channel_(std::move(channel)), dialer_(dialer), clock_(clock), id_(id) {}

void ScriptedPublisher::Greet(const PlanOptions& options) {
  Send(Hello{.publisher = id_, .model = {}, .sender_layout = layout_, .plan_options = options});
  reply_ = Expect<HelloReply>();
  const Result<Plan> plan = MakePlan(layout_, reply_.engine_layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  plan_ = *plan;
  for (const Bucket& bucket : plan_.buckets) {
    frame_bytes_ = std::max(frame_bytes_, FrameBytes(std::ssize(bucket.slices), bucket.payload_bytes));
  }
}

Offer ScriptedPublisher::MakeOffer(std::uint64_t number, const std::string& run) const {
  Offer offer;
  offer.session = SessionId::Mint();
  offer.manifest.run = run;
  offer.manifest.number = number;
  offer.manifest.tensors = plan_.tensors;  // a, b, n, v: by name already
  offer.manifest.sender_layout = plan_.sender_layout;
  offer.plan_digest = plan_.digest;
  offer.transport = dialer_.kind();
  offer.frame_bytes = frame_bytes_;
  offer.credits = 2;
  offer.time_left = std::chrono::seconds(60);
  return offer;
}

Offer ScriptedPublisher::MakePartialOffer(std::uint64_t number, const WeightVersion& base) const {
  Offer offer = MakeOffer(number);
  offer.manifest.scope = plan_.scope;
  offer.manifest.base = base;
  return offer;
}

void ScriptedPublisher::Send(const SessionMessage& message) {
  const Status status = channel_->Send(message);
  EXPECT_TRUE(status.ok()) << MessageName(message) << ": " << status.ToString();
}

SessionMessage ScriptedPublisher::Next() {
  Result<SessionMessage> message = channel_->Receive(Deadline::After(clock_, std::chrono::hours(10)));
  if (message.ok()) return *std::move(message);
  return Abort{SessionId{}, message.status()};
}

void ScriptedPublisher::OpenRoutes() {
  if (!routes_.empty()) return;
  for (const Route& route : plan_.routes) {
    auto sender = dialer_.Dial(reply_.endpoints.at(0), {reply_.connection, route, frame_bytes_, 2},
                               Deadline::After(clock_, std::chrono::hours(10)));
    ASSERT_TRUE(sender.ok()) << sender.status().ToString();
    routes_.push_back(*std::move(sender));
  }
}

std::vector<std::byte> ScriptedPublisher::Frame(SessionId session, std::uint64_t number, std::uint32_t bucket,
                                                std::uint32_t attempt) const {
  const Bucket& planned = plan_.buckets.at(bucket);
  const int rank = plan_.routes[static_cast<std::size_t>(planned.route)].sender_rank;
  const std::int64_t slice_count = std::ssize(planned.slices);
  std::vector<std::byte> frame(static_cast<std::size_t>(FrameBytes(slice_count, planned.payload_bytes)));
  for (std::int64_t s = 0; s < slice_count; ++s) {
    const Slice& slice = planned.slices[static_cast<std::size_t>(s)];
    const TensorSpec& spec = plan_.tensors[static_cast<std::size_t>(slice.tensor)];
    const std::vector<std::byte> source = LocalBytes(layout_, rank, slice.sender_tensor, number);
    const Dims& local_shape =
        layout_.ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(slice.sender_tensor)].shape;
    const auto payload =
        std::span(frame).subspan(static_cast<std::size_t>(PayloadOffset(slice_count) + slice.payload_offset),
                                 static_cast<std::size_t>(slice.payload_bytes));
    WriteSliceDigest(
        frame, s,
        PackAndDigestOnHost(KeyOf(spec), ShapeOf(slice.sender_box), slice.conversion, /*item_bytes=*/4, source.data(),
                            PlaceIn(slice.sender_box, local_shape), PlaceIn(slice.logical_box, spec.shape), payload));
  }
  BucketHeader header;
  header.session = session;
  header.bucket = bucket;
  header.attempt = attempt;
  header.slice_count = static_cast<std::uint32_t>(slice_count);
  header.payload_bytes = planned.payload_bytes;
  SealBucketFrame(header, frame);
  return frame;
}

BucketAck ScriptedPublisher::SendFrame(int route, std::span<const std::byte> frame) {
  BucketSender& sender = *routes_.at(static_cast<std::size_t>(route));
  std::ranges::copy(frame, sender.Acquire().begin());
  const Status sent = sender.Send(frame.size());
  EXPECT_TRUE(sent.ok()) << sent.ToString();
  const Result<BucketAck> ack = sender.NextAck(Deadline::After(clock_, std::chrono::hours(10)));
  EXPECT_TRUE(ack.ok()) << ack.status().ToString();
  return ack.ok() ? *ack : BucketAck{};
}

BucketVerdict ScriptedPublisher::SendBucket(SessionId session, std::uint64_t number, std::uint32_t bucket,
                                            std::uint32_t attempt) {
  const BucketAck ack = SendFrame(plan_.buckets.at(bucket).route, Frame(session, number, bucket, attempt));
  EXPECT_EQ(ack.bucket, bucket);
  EXPECT_EQ(ack.attempt, attempt);
  return ack.verdict;
}

void ScriptedPublisher::SendAllBuckets(const Offer& offer) {
  for (std::uint32_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
    ASSERT_EQ(SendBucket(offer.session, offer.manifest.number, bucket), BucketVerdict::kGood) << "bucket " << bucket;
  }
}

// From whole logical tensors, not from slices.
ManifestSeal ScriptedPublisher::SealOf(std::uint64_t number, std::optional<std::uint64_t> base) const {
  ManifestSeal seal;
  for (std::size_t t = 0; t < plan_.tensors.size(); ++t) {
    const TensorSpec& spec = plan_.tensors[t];
    const std::uint64_t version = IsCarried(plan_, static_cast<std::int32_t>(t)) ? base.value_or(number) : number;
    std::vector<std::byte> bytes;
    for (std::int64_t i = 0; i < spec.Elements(); ++i) {
      const float value = ElementForTest(version, static_cast<int>(t), i);
      std::byte element[4];
      std::memcpy(element, &value, 4);
      // An element is exact in bf16, so its upper half is all of it.
      bytes.insert(bytes.end(), element + (spec.dtype == DType::kBf16 ? 2 : 0), element + 4);
    }
    seal.digests.push_back(DigestRunOnHost(KeyOf(spec), 0, bytes));
  }
  seal.version_digest = VersionDigestOf(plan_.tensors, seal.digests);
  return seal;
}

ManifestSeal ScriptedPublisher::SealOf(const Offer& offer) const {
  const auto& base = offer.manifest.base;
  return SealOf(offer.manifest.number, base ? std::optional(base->number) : std::nullopt);
}

WeightVersion ScriptedPublisher::VersionOf(const Offer& offer) const {
  return {offer.manifest.run, offer.manifest.number, SealOf(offer).version_digest};
}

void ScriptedPublisher::BeginSession(const Offer& offer) {
  Send(offer);
  EXPECT_EQ(Expect<Accept>().session, offer.session);
  OpenRoutes();
}

void ScriptedPublisher::StageAndSeal(const Offer& offer) {
  SendAllBuckets(offer);
  Send(Seal{offer.session, SealOf(offer)});
  EXPECT_EQ(Expect<Ready>().session, offer.session);
}

FlipReport ScriptedPublisher::FlipNow(const Offer& offer) {
  Send(Flip{offer.session});
  Committed committed = Expect<Committed>();
  EXPECT_EQ(committed.session, offer.session);
  return committed.report;
}

FlipReport ScriptedPublisher::Publish(const Offer& offer) {
  BeginSession(offer);
  StageAndSeal(offer);
  return FlipNow(offer);
}

void ScriptedPublisher::Vanish() { channel_->Cancel(); }

}  // namespace bascule
