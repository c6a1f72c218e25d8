#include "engine_side/device_lane.h"

#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::size_t kBatchEntries = 512;
constexpr std::int64_t kAccessBytes = 16;  // the widest access, where a box's bytes and logical place allow it

constexpr std::int64_t kEntriesOffset = kBatchEntries * sizeof(TensorDigest);
constexpr std::int64_t kBytesOffset = kEntriesOffset + kBatchEntries * sizeof(MoveEntry);
static_assert(kBytesOffset % 256 == 0);

std::int64_t AddressOf(const std::byte* memory) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory));
}

std::span<std::byte> Part(std::span<std::byte> memory, std::int64_t offset, std::size_t bytes) {
  return memory.subspan(static_cast<std::size_t>(offset), bytes);
}

BoxMove MoveOf(const SlotBox& box) {
  return {.shape = box.shape, .item_bytes = box.item_bytes, .logical = box.logical, .key = box.key};
}

// Where one box lies in two memories, and the same of a part of it.
struct BoxPair {
  SlotBox box;
  BoxPlace other;
};

// Calls visit for parts of at most `most_bytes`, in row-major order.
template <typename Visit>
Status ForEachPiece(BoxPair whole, std::int64_t most_bytes, const Visit& visit) {
  if (whole.box.shape.Elements() * whole.box.item_bytes <= most_bytes) return visit(whole);
  std::size_t d = 0;
  while (whole.box.shape.count[d] == 1) ++d;
  BoxPair half = whole;
  half.box.shape.count[d] /= 2;
  RETURN_IF_ERROR(ForEachPiece(half, most_bytes, visit));
  const std::int64_t before = half.box.shape.count[d];
  whole.box.shape.count[d] -= before;
  for (BoxPlace* place : {&whole.box.place, &whole.box.logical, &whole.other})
    place->offset += before * place->stride[d];
  return ForEachPiece(whole, most_bytes, visit);
}

}  // namespace

std::size_t DeviceLane::BytesOf(std::int64_t staged_bytes) {
  return 2 * static_cast<std::size_t>(kBytesOffset + RoundUp(staged_bytes, 256));
}

Result<std::unique_ptr<DeviceLane>> DeviceLane::Create(Device& device, const DeviceKernels& kernels,
                                                       std::shared_ptr<const LaneMemory> memory, std::size_t begin,
                                                       std::int64_t staged_bytes, Clock& clock) {
  auto lane = std::unique_ptr<DeviceLane>(new DeviceLane(kernels, std::move(memory), staged_bytes, clock));
  ASSIGN_OR_RETURN(lane->stream_, device.MakeStream(StreamPriority::kLow));
  ASSIGN_OR_RETURN(lane->drained_, device.MakeEvent());
  for (Batch& batch : lane->batches_) {
    ASSIGN_OR_RETURN(batch.done, device.MakeEvent());
    batch.pinned = lane->memory_->pinned->bytes().subspan(begin, BytesOf(staged_bytes) / 2);
    batch.on_device = lane->memory_->on_device->bytes().subspan(begin, BytesOf(staged_bytes) / 2);
    begin += BytesOf(staged_bytes) / 2;
  }
  return lane;
}

// A piece begins where the access wants it.
std::int64_t DeviceLane::PieceBytes() const { return staged_bytes_ - kAccessBytes; }

Status DeviceLane::PlaceAndDigest(std::span<const Placement> boxes, FrameMemory from, std::span<TensorDigest> digests) {
  Begin(Work::kMoveAndDigest, digests, {});
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const SlotTarget& to = boxes[i].to;
    const BoxView& view = boxes[i].from;
    if (from == FrameMemory::kDevice) {
      BoxMove move = MoveOf(to.box);
      move.source_bytes = AddressOf(view.base);
      move.source = view.place;
      move.target_bytes = AddressOf(to.tensor);
      move.target = to.box.place;
      RETURN_IF_ERROR(Add(move, i, 0, 0));
      continue;
    }
    RETURN_IF_ERROR(ForEachPiece({to.box, view.place}, PieceBytes(), [&](const BoxPair& piece) {
      return AddFromHost({{piece.box, to.tensor}, {view.base, piece.other, nullptr}}, i);
    }));
  }
  return Finish();
}

// The box is gathered from wherever it lies, into a run that the device copies at once.
Status DeviceLane::AddFromHost(const Placement& piece, std::size_t box) {
  const auto& [to, view] = piece;
  const std::int64_t bytes = to.box.shape.Elements() * to.box.item_bytes;
  ASSIGN_OR_RETURN(const std::int64_t offset, Reserve(bytes, to.box.logical.offset * to.box.item_bytes));
  const Batch& batch = batches_[current_];
  CopyBoxOnHost(to.box.shape, to.box.item_bytes, view.base, view.place, Part(batch.pinned, offset, 0).data(),
                CompactPlace(to.box.shape));
  BoxMove move = MoveOf(to.box);
  move.source_bytes = AddressOf(Part(batch.on_device, offset, 0).data());
  move.source = CompactPlace(to.box.shape);
  move.target_bytes = AddressOf(to.tensor);
  move.target = to.box.place;
  return Add(move, box, offset, bytes);
}

Status DeviceLane::Digest(std::span<const SlotSource> boxes, std::span<TensorDigest> digests) {
  Begin(Work::kDigest, digests, {});
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    BoxMove move = MoveOf(boxes[i].box);
    move.source_bytes = AddressOf(boxes[i].tensor);
    move.source = boxes[i].box.place;
    RETURN_IF_ERROR(Add(move, i, 0, 0));
  }
  return Finish();
}

Status DeviceLane::Zero(std::span<const SlotTarget> boxes) {
  Begin(Work::kMove, {}, {});
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    BoxMove move = MoveOf(boxes[i].box);
    move.target_bytes = AddressOf(boxes[i].tensor);
    move.target = boxes[i].box.place;
    move.fills = true;
    RETURN_IF_ERROR(Add(move, i, 0, 0));
  }
  return Finish();
}

Status DeviceLane::Read(std::span<const SlotSource> boxes, std::span<std::byte> to) {
  Begin(Work::kRead, {}, to);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    RETURN_IF_ERROR(ForEachPiece({boxes[i].box, {}}, PieceBytes(), [&](const BoxPair& piece) -> Status {
      const std::int64_t bytes = piece.box.shape.Elements() * piece.box.item_bytes;
      ASSIGN_OR_RETURN(const std::int64_t offset, Reserve(bytes, piece.box.logical.offset * piece.box.item_bytes));
      BoxMove move = MoveOf(piece.box);
      move.source_bytes = AddressOf(boxes[i].tensor);
      move.source = piece.box.place;
      move.target_bytes = AddressOf(Part(batches_[current_].on_device, offset, 0).data());
      move.target = CompactPlace(piece.box.shape);
      return Add(move, i, offset, bytes);
    }));
  }
  return Finish();
}

Status DeviceLane::Drain() {
  RETURN_IF_ERROR(stream_->Record(*drained_));
  return AwaitEvent(*drained_, Deadline::After(clock_, kDevicePatience), clock_);
}

void DeviceLane::Begin(Work work, std::span<TensorDigest> digests, std::span<std::byte> read) {
  work_ = work;
  digests_ = digests;
  read_ = read;
  for (Batch& batch : batches_) Clear(batch);
}

void DeviceLane::Clear(Batch& batch) {
  batch.table = BoxMoveTable();
  batch.entries.clear();
  batch.end = kBytesOffset;
  batch.is_enqueued = false;
}

// At the place modulo kAccessBytes that it has in its tensor.
Result<std::int64_t> DeviceLane::Reserve(std::int64_t bytes, std::int64_t logical_byte) {
  const auto offset = [&] { return RoundUp(batches_[current_].end, kAccessBytes) + logical_byte % kAccessBytes; };
  if (batches_[current_].entries.size() == kBatchEntries || offset() + bytes > kBytesOffset + staged_bytes_) {
    RETURN_IF_ERROR(NextBatch());
  }
  return offset();
}

Status DeviceLane::Add(const BoxMove& move, std::size_t box, std::int64_t offset, std::int64_t bytes) {
  if (move.shape.Elements() == 0) return OkStatus();
  if (batches_[current_].entries.size() == kBatchEntries) RETURN_IF_ERROR(NextBatch());
  Batch& batch = batches_[current_];
  RETURN_IF_ERROR(batch.table.Add(move));
  batch.entries.push_back({box, offset, static_cast<std::size_t>(bytes)});
  if (bytes > 0) batch.end = offset + bytes;
  return OkStatus();
}

Status DeviceLane::NextBatch() {
  RETURN_IF_ERROR(Enqueue(batches_[current_]));
  current_ = 1 - current_;
  return Collect(batches_[current_]);
}

Status DeviceLane::Finish() {
  RETURN_IF_ERROR(NextBatch());
  return Collect(batches_[1 - current_]);
}

Status DeviceLane::Enqueue(Batch& batch) {
  if (batch.entries.empty()) return OkStatus();
  const std::span<const std::byte> entries = std::as_bytes(batch.table.entries());
  std::memcpy(Part(batch.pinned, kEntriesOffset, entries.size()).data(), entries.data(), entries.size());
  const auto copy = [&](std::span<std::byte> to, std::span<std::byte> from, std::int64_t offset, std::size_t bytes) {
    return stream_->Copy(Part(to, offset, bytes), Part(from, offset, bytes));
  };
  const auto bytes = static_cast<std::size_t>(batch.end - kBytesOffset);
  const std::size_t digest_bytes = batch.entries.size() * sizeof(TensorDigest);
  const bool digests = work_ == Work::kMoveAndDigest || work_ == Work::kDigest;
  RETURN_IF_ERROR(copy(batch.on_device, batch.pinned, kEntriesOffset, entries.size()));
  if (work_ == Work::kMoveAndDigest) RETURN_IF_ERROR(copy(batch.on_device, batch.pinned, kBytesOffset, bytes));
  if (digests) RETURN_IF_ERROR(stream_->Fill(Part(batch.on_device, 0, digest_bytes), std::byte{0}));
  RETURN_IF_ERROR(Launch(batch));
  if (digests) RETURN_IF_ERROR(copy(batch.pinned, batch.on_device, 0, digest_bytes));
  if (work_ == Work::kRead) RETURN_IF_ERROR(copy(batch.pinned, batch.on_device, kBytesOffset, bytes));
  RETURN_IF_ERROR(stream_->Record(*batch.done));
  batch.is_enqueued = true;
  return OkStatus();
}

// Places are addresses, so no base is added to them.
Status DeviceLane::Launch(const Batch& batch) {
  const MoveBatch moves{.entries = reinterpret_cast<const MoveEntry*>(Part(batch.on_device, kEntriesOffset, 0).data()),
                        .entry_count = std::ssize(batch.entries),
                        .tiles = batch.table.tiles(),
                        .digests = reinterpret_cast<TensorDigest*>(Part(batch.on_device, 0, 0).data())};
  switch (work_) {
    case Work::kMoveAndDigest:
      return kernels_.move_and_digest_boxes(moves, stream_->handle());
    case Work::kDigest:
      return kernels_.digest_boxes(moves, stream_->handle());
    case Work::kMove:
    case Work::kRead:
      return kernels_.move_boxes(moves, stream_->handle());
  }
  return OkStatus();
}

Status DeviceLane::Collect(Batch& batch) {
  if (!batch.is_enqueued) return OkStatus();
  RETURN_IF_ERROR(AwaitEvent(*batch.done, Deadline::After(clock_, kDevicePatience), clock_));
  const std::byte* const digests = batch.pinned.data();
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    const Entry& entry = batch.entries[i];
    if (work_ == Work::kRead) {
      std::memcpy(read_.data(), Part(batch.pinned, entry.offset, entry.bytes).data(), entry.bytes);
      read_ = read_.subspan(entry.bytes);
    } else if (!digests_.empty()) {
      TensorDigest digest;
      std::memcpy(&digest, digests + i * sizeof digest, sizeof digest);
      digests_[entry.box] += digest;
    }
  }
  Clear(batch);
  return OkStatus();
}

}  // namespace bascule
