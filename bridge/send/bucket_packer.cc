#include "bridge/send/bucket_packer.h"

#include <algorithm>
#include <cstring>

#include "bridge/manifest/manifest.h"

namespace bascule {
namespace {

void Zero(std::span<std::byte> bytes) {
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

std::int64_t RowCount(const BoxShape& shape) { return shape.dims == 0 ? 1 : shape.count[0]; }

// Rows [begin, end) of a box and of its places.
BoxShape RowsOf(BoxShape shape, std::int64_t begin, std::int64_t end) {
  if (shape.dims > 0) shape.count[0] = end - begin;
  return shape;
}
BoxPlace FromRow(BoxPlace place, std::int64_t begin) {
  place.offset += begin * place.stride[0];
  return place;
}

// Reads the next box of `shape`; the sum of what `digest_rows(box, begin, end)` gives of all its rows, each as soon as
// it may be read.
template <typename DigestRows>
Result<BoxView> ReadAndDigest(BoxReader& reader, const BoxShape& shape, TensorDigest& sum,
                              const DigestRows& digest_rows) {
  std::int64_t done = 0;
  const auto take = [&](const BoxView& box, std::int64_t rows) {
    if (rows > done) sum += digest_rows(box, done, rows);
    done = rows;
  };
  ASSIGN_OR_RETURN(BoxView box, reader.NextByRows(take));
  take(box, RowCount(shape));
  return box;
}

}  // namespace

std::int64_t MaxFrameBytes(const Plan& plan) {
  std::int64_t most = FrameBytes(0, 0);
  for (const Bucket& bucket : plan.buckets) {
    most = std::max(most, FrameBytes(static_cast<std::int64_t>(bucket.slices.size()), bucket.payload_bytes));
  }
  return most;
}

BucketPacker::BucketPacker(const Plan& plan, const WeightSource& source) : plan_(plan), source_(source) {
  keys_.reserve(plan.tensors.size());
  for (const TensorSpec& tensor : plan.tensors) keys_.push_back(KeyOf(tensor));
  first_slice_of_.reserve(plan.buckets.size() + 1);
  for (const Bucket& bucket : plan.buckets) {
    first_slice_of_.push_back(slices_.size());
    const int sender_rank = plan.routes[static_cast<std::size_t>(bucket.route)].sender_rank;
    if (!source.Holds(sender_rank)) continue;
    for (const Slice& slice : bucket.slices) slices_.push_back(Prepare(sender_rank, slice));
  }
  first_slice_of_.push_back(slices_.size());
}

BucketPacker::PreparedSlice BucketPacker::Prepare(int sender_rank, const Slice& slice) const {
  const RankLayout& rank = source_.layout().ranks[static_cast<std::size_t>(sender_rank)];
  const LocalTensor& local = rank.tensors[static_cast<std::size_t>(slice.sender_tensor)];
  const TensorSpec& wire = plan_.tensors[static_cast<std::size_t>(slice.tensor)];
  PreparedSlice prepared;
  prepared.source.base = source_.Base(sender_rank, slice.sender_tensor);
  prepared.source.item_bytes = ItemBytes(local.dtype);
  // Sender and logical box may differ in dimensions of extent 1; shape and places leave those out.
  prepared.source.shape = ShapeOf(slice.sender_box);
  prepared.source.place =
      local.stride.empty() ? PlaceIn(slice.sender_box, local.shape) : PlaceInStrided(slice.sender_box, local.stride);
  prepared.logical = PlaceIn(slice.logical_box, wire.shape);
  prepared.conversion = local.dtype == wire.dtype ? Conversion::kNone : slice.conversion;
  prepared.tensor = slice.tensor;
  prepared.counts = slice.counts;
  prepared.begin = slice.payload_offset;
  prepared.end = slice.payload_offset + slice.payload_bytes;
  return prepared;
}

std::int64_t BucketPacker::FrameBytesOf(std::uint32_t bucket) const {
  const Bucket& planned = plan_.buckets[bucket];
  return FrameBytes(static_cast<std::int64_t>(planned.slices.size()), planned.payload_bytes);
}

std::span<const BucketPacker::PreparedSlice> BucketPacker::SlicesOf(std::uint32_t bucket) const {
  return std::span(slices_).subspan(first_slice_of_[bucket], first_slice_of_[bucket + 1] - first_slice_of_[bucket]);
}

std::int64_t BucketPacker::HeadBytesOf(std::uint32_t bucket) const {
  return PayloadOffset(static_cast<std::int64_t>(plan_.buckets[bucket].slices.size()));
}

std::unique_ptr<BoxReader> BucketPacker::Read(std::span<const std::uint32_t> buckets) const {
  std::vector<SourceBox> boxes;
  for (const std::uint32_t bucket : buckets) {
    for (const PreparedSlice& slice : SlicesOf(bucket)) boxes.push_back(slice.source);
  }
  return source_.Read(std::move(boxes));
}

Status BucketPacker::Pack(BucketHeader header, BoxReader& reader, std::span<std::byte> frame,
                          std::span<TensorDigest> totals) const {
  const std::span<const PreparedSlice> slices = SlicesOf(header.bucket);
  header.slice_count = static_cast<std::uint32_t>(slices.size());
  header.payload_bytes = plan_.buckets[header.bucket].payload_bytes;
  const std::span<std::byte> payload = frame.subspan(static_cast<std::size_t>(PayloadOffset(header.slice_count)));
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const PreparedSlice& slice = slices[i];
    Zero(payload.subspan(static_cast<std::size_t>(filled), static_cast<std::size_t>(slice.begin - filled)));
    TensorDigest digest;
    RETURN_IF_ERROR(ReadAndDigest(reader, slice.source.shape, digest,
                                  [&](const BoxView& box, std::int64_t begin, std::int64_t end) {
                                    return PackRows(slice, box, begin, end, payload);
                                  })
                        .status());
    Note(slice, digest, i, frame, totals);
    filled = slice.end;
  }
  Zero(payload.subspan(static_cast<std::size_t>(filled)));
  SealBucketFrame(header, frame);
  return OkStatus();
}

TensorDigest BucketPacker::PackRows(const PreparedSlice& slice, const BoxView& box, std::int64_t begin,
                                    std::int64_t end, std::span<std::byte> payload) const {
  const std::int64_t row_bytes = (slice.end - slice.begin) / std::max<std::int64_t>(RowCount(slice.source.shape), 1);
  return PackAndDigestOnHost(keys_[static_cast<std::size_t>(slice.tensor)], RowsOf(slice.source.shape, begin, end),
                             slice.conversion, slice.source.item_bytes, box.base, FromRow(box.place, begin),
                             FromRow(slice.logical, begin),
                             payload.subspan(static_cast<std::size_t>(slice.begin + begin * row_bytes),
                                             static_cast<std::size_t>((end - begin) * row_bytes)));
}

TensorDigest BucketPacker::DigestRows(const PreparedSlice& slice, const BoxView& box, std::int64_t begin,
                                      std::int64_t end) const {
  return DigestBoxOnHost(keys_[static_cast<std::size_t>(slice.tensor)], RowsOf(slice.source.shape, begin, end),
                         slice.source.item_bytes, box.base, FromRow(box.place, begin), FromRow(slice.logical, begin));
}

Result<BoxMoveTable> BucketPacker::TableOf(std::uint32_t bucket) const {
  BoxMoveTable table;
  for (const PreparedSlice& slice : SlicesOf(bucket)) {
    RETURN_IF_ERROR(table.Add({.shape = slice.source.shape,
                               .item_bytes = slice.source.item_bytes,
                               .conversion = slice.conversion,
                               .source_bytes = reinterpret_cast<std::int64_t>(slice.source.base),
                               .source = slice.source.place,
                               .target_bytes = slice.begin,
                               .target = CompactPlace(slice.source.shape),
                               .logical = slice.logical,
                               .key = keys_[static_cast<std::size_t>(slice.tensor)]}));
  }
  return table;
}

void BucketPacker::Seal(BucketHeader header, std::span<const TensorDigest> digests, std::span<const std::byte> payload,
                        std::span<std::byte> frame, std::span<TensorDigest> totals) const {
  const std::span<const PreparedSlice> slices = SlicesOf(header.bucket);
  header.slice_count = static_cast<std::uint32_t>(slices.size());
  header.payload_bytes = PayloadBytesOf(header.bucket);
  const std::span<std::byte> target = frame.subspan(static_cast<std::size_t>(PayloadOffset(header.slice_count)));
  std::size_t filled = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    Note(slices[i], digests[i], i, frame, totals);
    if (payload.empty()) continue;
    const auto begin = static_cast<std::size_t>(slices[i].begin), end = static_cast<std::size_t>(slices[i].end);
    Zero(target.subspan(filled, begin - filled));
    std::memcpy(target.data() + begin, payload.data() + begin, end - begin);
    filled = end;
  }
  Zero(target.subspan(filled));
  SealBucketFrame(header, frame, payload.empty() ? PayloadPlace::kApart : PayloadPlace::kInFrame);
}

bool BucketPacker::CanName(std::uint32_t bucket, const BoxReader& reader) const {
  return reader.GivesMemory() && std::ranges::all_of(SlicesOf(bucket), [](const PreparedSlice& slice) {
           return slice.conversion == Conversion::kNone;
         });
}

Status BucketPacker::Name(BucketHeader header, BoxReader& reader, std::span<std::byte> frame,
                          std::vector<BoxView>& payload, std::span<TensorDigest> totals) const {
  const std::span<const PreparedSlice> slices = SlicesOf(header.bucket);
  header.slice_count = static_cast<std::uint32_t>(slices.size());
  header.payload_bytes = plan_.buckets[header.bucket].payload_bytes;
  payload.clear();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const PreparedSlice& slice = slices[i];
    TensorDigest digest;
    ASSIGN_OR_RETURN(BoxView view, ReadAndDigest(reader, slice.source.shape, digest,
                                                 [&](const BoxView& box, std::int64_t begin, std::int64_t end) {
                                                   return DigestRows(slice, box, begin, end);
                                                 }));
    Note(slice, digest, i, frame, totals);
    payload.push_back(std::move(view));
  }
  SealBucketFrame(header, frame, PayloadPlace::kApart);
  return OkStatus();
}

void BucketPacker::Note(const PreparedSlice& slice, const TensorDigest& digest, std::size_t index,
                        std::span<std::byte> frame, std::span<TensorDigest> totals) {
  WriteSliceDigest(frame, static_cast<std::int64_t>(index), digest);
  if (slice.counts && !totals.empty()) totals[static_cast<std::size_t>(slice.tensor)] += digest;
}

}  // namespace bascule
