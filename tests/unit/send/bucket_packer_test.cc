#include "bridge/send/bucket_packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bridge/plan/planner.h"
#include "kernels/pack.h"
#include "tests/support/scripted_engine/digest_oracle.h"
#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule {
namespace {

constexpr SessionId kSession{.value = 0x1234};

// Where element `e` of `box`, counted row-major, lies in the dense tensor.
std::size_t PositionOf(const Box& box, const Dims& shape, std::int64_t e) {
  std::int64_t position = 0;
  std::int64_t scale = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    position += (box.offset[d] + e % box.extent[d]) * scale;
    e /= box.extent[d];
    scale *= shape[d];
  }
  return static_cast<std::size_t>(position);
}

class BucketPackerTest : public testing::Test {
 protected:
  BucketPackerTest() {
    auto plan = MakePlan(source_.layout(), ShardedTrainer::EngineLayout(/*engine_ranks=*/2), {.bucket_bytes = 4096});
    CHECK(plan.ok());
    plan_ = std::move(*plan);
    for (std::size_t t = 0; t < plan_.tensors.size(); ++t) {
      for (std::size_t w = 0; w < wire_.size(); ++w) {
        if (wire_[w].name == plan_.tensors[t].name) wire_index_.push_back(w);
      }
    }
  }

  // A frame full of old bytes.
  std::vector<std::byte> PackInto(const BucketPacker& packer, std::uint32_t bucket, std::span<TensorDigest> totals) {
    std::vector<std::byte> frame(static_cast<std::size_t>(packer.FrameBytesOf(bucket)), std::byte{0xee});
    const std::unique_ptr<BoxReader> reader = packer.Read({&bucket, 1});
    CHECK(packer.Pack(HeaderOf(bucket), *reader, frame, totals).ok());
    return frame;
  }
  static BucketHeader HeaderOf(std::uint32_t bucket) {
    return {.session = kSession, .bucket = bucket, .attempt = 1, .has_checksum = true};
  }

  // The slice's bytes in the whole tensor, which is zero elsewhere.
  std::vector<std::byte> SliceAlone(const Slice& slice) const {
    const std::size_t w = wire_index_[static_cast<std::size_t>(slice.tensor)];
    const std::vector<std::byte> whole = bytes_[w];
    const auto item = static_cast<std::size_t>(ItemBytes(wire_[w].dtype));
    std::vector<std::byte> alone(whole.size());
    for (std::int64_t e = 0; e < slice.logical_box.Elements(); ++e) {
      const std::size_t at = PositionOf(slice.logical_box, wire_[w].shape, e) * item;
      std::memcpy(&alone[at], &whole[at], item);
    }
    return alone;
  }

  ShardedTrainer trainer_{/*trainer_ranks=*/3};
  const TensorSource source_ = trainer_.Source();
  const std::vector<TensorSpec> wire_ = ShardedTrainer::WireTensors();
  const std::vector<std::vector<std::byte>> bytes_ = trainer_.WireBytes();
  Plan plan_;
  std::vector<std::size_t> wire_index_;  // per plan tensor: its index in wire_
};

TEST_F(BucketPackerTest, EverySliceLiesAtItsOffsetWithTheDigestOfItsElements) {
  const BucketPacker packer(plan_, source_);
  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const std::vector<std::byte> frame = PackInto(packer, b, {});

    const auto header = ParseBucketHeader(frame);
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->session, kSession);
    EXPECT_EQ(header->bucket, b);
    EXPECT_EQ(header->attempt, 1U);
    EXPECT_TRUE(CheckPayload(*header, frame).ok());
    const Bucket& bucket = plan_.buckets[b];
    for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
      const Slice& slice = bucket.slices[s];
      const TensorSpec& spec = wire_[wire_index_[static_cast<std::size_t>(slice.tensor)]];
      const std::vector<std::byte> alone = SliceAlone(slice);
      EXPECT_EQ(ReadSliceDigest(frame, static_cast<std::int64_t>(s)), OracleDigest(spec, alone)) << spec.name;
      const auto item = static_cast<std::size_t>(ItemBytes(spec.dtype));
      const auto payload = static_cast<std::size_t>(PayloadOffset(header->slice_count) + slice.payload_offset);
      for (std::int64_t e = 0; e < slice.logical_box.Elements(); ++e) {
        ASSERT_EQ(std::memcmp(&frame[payload + static_cast<std::size_t>(e) * item],
                              &alone[PositionOf(slice.logical_box, spec.shape, e) * item], item),
                  0)
            << spec.name << " element " << e;
      }
    }
  }
}

// Memory that lives as long as somebody holds it.
class LastingReader final : public BoxReader {
 public:
  explicit LastingReader(std::unique_ptr<BoxReader> boxes) : boxes_(std::move(boxes)) {}
  Result<BoxView> Next() override {
    ASSIGN_OR_RETURN(BoxView view, boxes_->Next());
    view.memory = std::make_shared<int>(0);
    return view;
  }
  bool GivesMemory() const override { return true; }

 private:
  const std::unique_ptr<BoxReader> boxes_;
};

TEST_F(BucketPackerTest, WhatIsConvertedOrKeptByItsReaderIsNotNamed) {
  const BucketPacker packer(plan_, source_);
  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    EXPECT_FALSE(packer.CanName(b, *packer.Read({&b, 1}))) << "memory that its reader keeps";
    const bool converts = std::ranges::any_of(plan_.buckets[b].slices,
                                              [](const Slice& slice) { return slice.conversion != Conversion::kNone; });
    EXPECT_EQ(packer.CanName(b, LastingReader(packer.Read({&b, 1}))), !converts);
  }
}

TEST_F(BucketPackerTest, ABucketThatIsNamedHasTheDigestsAndTheElementsOfOneThatIsPacked) {
  const TensorSpec spec{"as.it.is", DType::kBf16, {64, 48}};
  std::vector<std::byte> held(64 * 48 * 2);
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = static_cast<std::byte>(i * 7 + i / 256);
  TensorSource source(/*trainer_ranks=*/2);
  ASSERT_TRUE(source.Add(0, {.tensor = spec, .box = Box{{0, 0}, {64, 20}}, .data = held.data()}).ok());
  ASSERT_TRUE(source.Add(1, {.tensor = spec, .box = Box{{0, 20}, {64, 28}}, .data = &held[64 * 20 * 2]}).ok());
  const auto plan = MakePlan(source.layout(), PlainLayout({spec}), {.bucket_bytes = 4096});
  ASSERT_TRUE(plan.ok());
  const BucketPacker packer(*plan, source);

  for (std::uint32_t b = 0; b < plan->buckets.size(); ++b) {
    const std::vector<Slice>& slices = plan->buckets[b].slices;
    LastingReader reader(packer.Read({&b, 1}));
    ASSERT_TRUE(packer.CanName(b, reader));
    const std::vector<std::byte> frame = PackInto(packer, b, {});
    std::vector<std::byte> head(static_cast<std::size_t>(packer.HeadBytesOf(b)));
    std::vector<BoxView> payload;

    ASSERT_TRUE(packer.Name({.session = kSession, .bucket = b}, reader, head, payload, {}).ok());

    ASSERT_EQ(payload.size(), slices.size());
    for (std::size_t s = 0; s < slices.size(); ++s) {
      const auto at = static_cast<std::int64_t>(s);
      EXPECT_EQ(ReadSliceDigest(head, at), ReadSliceDigest(frame, at));
      std::vector<std::byte> compact(static_cast<std::size_t>(slices[s].payload_bytes));
      CopyBoxOnHost(ShapeOf(slices[s].sender_box), ItemBytes(spec.dtype), payload[s].base, payload[s].place,
                    compact.data(), CompactPlace(ShapeOf(slices[s].sender_box)));
      const std::size_t begin = static_cast<std::size_t>(PayloadOffset(std::ssize(slices)) + slices[s].payload_offset);
      EXPECT_TRUE(std::equal(compact.begin(), compact.end(), frame.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

// Gives out rows one after another, up to the last but one.
class RowByRowReader final : public BoxReader {
 public:
  RowByRowReader(std::unique_ptr<BoxReader> boxes, std::span<const Slice> slices)
      : boxes_(std::move(boxes)), slices_(slices) {}
  Result<BoxView> Next() override { return boxes_->Next(); }
  Result<BoxView> NextByRows(const RowsReady& ready) override {
    ASSIGN_OR_RETURN(BoxView view, boxes_->Next());
    const BoxShape shape = ShapeOf(slices_[next_++].sender_box);
    for (std::int64_t row = 1; shape.dims > 0 && row < shape.count[0]; ++row) ready(view, row);
    return view;
  }

 private:
  const std::unique_ptr<BoxReader> boxes_;
  const std::span<const Slice> slices_;
  std::size_t next_ = 0;
};

TEST_F(BucketPackerTest, ABoxWhoseRowsComeOneAfterAnotherPacksAsOneThatComesWhole) {
  const BucketPacker packer(plan_, source_);
  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    std::vector<TensorDigest> totals(plan_.tensors.size());
    const std::vector<std::byte> whole = PackInto(packer, b, totals);
    std::vector<TensorDigest> totals_by_rows(plan_.tensors.size());
    std::vector<std::byte> frame(whole.size(), std::byte{0xee});
    RowByRowReader reader(packer.Read({&b, 1}), plan_.buckets[b].slices);

    ASSERT_TRUE(packer.Pack(HeaderOf(b), reader, frame, totals_by_rows).ok());

    EXPECT_EQ(frame, whole);
    EXPECT_EQ(totals_by_rows, totals);
  }
}

TEST_F(BucketPackerTest, BytesThatNoSliceCoversAreZeroWhateverTheFrameHeldBefore) {
  const BucketPacker packer(plan_, source_);
  std::int64_t gap_bytes = 0;
  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const std::vector<std::byte> frame = PackInto(packer, b, {});

    const Bucket& bucket = plan_.buckets[b];
    std::vector<bool> covered(static_cast<std::size_t>(bucket.payload_bytes));
    for (const Slice& slice : bucket.slices) {
      std::fill_n(covered.begin() + slice.payload_offset, slice.payload_bytes, true);
    }
    const auto payload = static_cast<std::size_t>(PayloadOffset(static_cast<std::int64_t>(bucket.slices.size())));
    for (std::size_t at = 0; at < covered.size(); ++at) {
      if (covered[at]) continue;
      ++gap_bytes;
      ASSERT_EQ(frame[payload + at], std::byte{0}) << "bucket " << b << " byte " << at;
    }
  }
  EXPECT_GT(gap_bytes, 0);
}

TEST_F(BucketPackerTest, TotalsOverAllBucketsAreTheDigestsOfWholeTensors) {
  const BucketPacker packer(plan_, source_);
  std::vector<TensorDigest> totals(plan_.tensors.size());

  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) PackInto(packer, b, totals);

  for (std::size_t t = 0; t < totals.size(); ++t) {
    EXPECT_EQ(totals[t], OracleDigest(wire_[wire_index_[t]], bytes_[wire_index_[t]])) << plan_.tensors[t].name;
  }
}

TEST_F(BucketPackerTest, AShardWithStridesPacksAsItsDenseTwin) {
  const std::array<float, 12> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::array<float, 12> columns = {1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12};
  const TensorSpec spec{.name = "w", .dtype = DType::kF32, .shape = {3, 4}};
  TensorSource dense(1);
  TensorSource strided(1);
  ASSERT_TRUE(dense.Add(0, {.tensor = spec, .box = Box::Whole({3, 4}), .data = rows.data()}).ok());
  ASSERT_TRUE(
      strided.Add(0, {.tensor = spec, .box = Box::Whole({3, 4}), .data = columns.data(), .stride = {1, 3}}).ok());
  const Layout engine = PlainLayout({{.name = "w", .dtype = DType::kBf16, .shape = {3, 4}}});
  const auto dense_plan = MakePlan(dense.layout(), engine, {});
  const auto strided_plan = MakePlan(strided.layout(), engine, {});
  ASSERT_TRUE(dense_plan.ok());
  ASSERT_TRUE(strided_plan.ok());

  EXPECT_EQ(PackInto(BucketPacker(*strided_plan, strided), 0, {}), PackInto(BucketPacker(*dense_plan, dense), 0, {}));
}

TEST_F(BucketPackerTest, NoFrameIsLargerThanTheLargestAnnounced) {
  const BucketPacker packer(plan_, source_);
  std::int64_t largest = 0;
  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) largest = std::max(largest, packer.FrameBytesOf(b));

  EXPECT_EQ(MaxFrameBytes(plan_), largest);
}

}  // namespace
}  // namespace bascule
