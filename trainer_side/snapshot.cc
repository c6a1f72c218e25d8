#include "trainer_side/snapshot.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked_math.h"
#include "base/worker.h"
#include "bridge/send/device_reader.h"
#include "bridge/send/weight_device.h"
#include "device/host/host_memory.h"
#include "kernels/cast.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 64;

Conversion ConversionOf(DType from, DType to) {
  if (from == to) return Conversion::kNone;
  return from == DType::kF32 ? Conversion::kF32ToBf16 : Conversion::kBf16ToF32;
}

}  // namespace

DeviceMemory& MemoryForSnapshot(const WeightSource& source, bool on_device) {
  if (source.device() == nullptr) return HostMemory();
  Device& device = source.device()->device();
  return on_device ? device.memory() : device.pinned_memory();
}

WeightSnapshot::WeightSnapshot(const WeightSource& source, std::vector<TensorSpec> wire)
    : source_(source), wire_(std::move(wire)), layout_(source.layout()) {}

Result<std::unique_ptr<WeightSnapshot>> WeightSnapshot::Create(const WeightSource& source,
                                                               const std::vector<TensorSpec>& wire,
                                                               DeviceMemory& memory) {
  std::unique_ptr<WeightSnapshot> snapshot(new WeightSnapshot(source, wire));
  snapshot->is_on_device_ = source.device() != nullptr && &memory == &source.device()->device().memory();
  for (std::size_t rank = 0; rank < snapshot->layout_.ranks.size(); ++rank) {
    ASSIGN_OR_RETURN(auto buffer, memory.Allocate(static_cast<std::size_t>(snapshot->Place(rank))));
    snapshot->memory_.push_back(std::move(buffer));
  }
  return snapshot;
}

std::int64_t WeightSnapshot::Place(std::size_t rank) {
  RankLayout& layout = layout_.ranks[rank];
  const std::vector<std::optional<DType>> types = TypesOf(layout);
  std::vector<std::int64_t>& offsets = offset_.emplace_back(layout.tensors.size(), kNotHeld);
  std::int64_t end = 0;
  for (std::size_t local = 0; local < types.size(); ++local) {
    if (!types[local]) continue;
    LocalTensor& tensor = layout.tensors[local];
    tensor.dtype = *types[local];
    tensor.stride = {};
    offsets[local] = end;
    end = RoundUp(end + tensor.Bytes(), kTensorAlignment);
  }
  return end;
}

std::vector<std::optional<DType>> WeightSnapshot::TypesOf(const RankLayout& rank) const {
  std::map<std::string_view, DType> wire_type;
  for (const TensorSpec& tensor : wire_) wire_type[tensor.name] = tensor.dtype;
  std::vector<std::optional<DType>> types(rank.tensors.size());
  for (const MapRow& row : rank.rows) {
    if (row.logical == kFill || row.local_box.Empty()) continue;
    const auto wanted = wire_type.find(layout_.tensors[static_cast<std::size_t>(row.logical)].name);
    if (wanted == wire_type.end()) continue;
    std::optional<DType>& type = types[static_cast<std::size_t>(row.local)];
    const bool is_other = type && *type != wanted->second;
    type = is_other ? rank.tensors[static_cast<std::size_t>(row.local)].dtype : wanted->second;
  }
  return types;
}

Status WeightSnapshot::Copy(Deadline deadline) {
  if (source_.device() != nullptr) return CopyOnDevice(deadline);
  std::vector<Worker> workers;
  for (std::size_t rank = 1; rank < layout_.ranks.size(); ++rank) {
    workers.emplace_back(fmt::format("snapshot-{}", rank), [this, rank](std::stop_token) { CopyRank(rank); });
  }
  CopyRank(0);
  for (Worker& worker : workers) worker.Join();
  return OkStatus();
}

void WeightSnapshot::CopyRank(std::size_t rank) {
  for (std::size_t tensor = 0; tensor < offset_[rank].size(); ++tensor) {
    if (offset_[rank][tensor] != kNotHeld) CopyTensor(rank, tensor);
  }
}

void WeightSnapshot::CopyTensor(std::size_t rank, std::size_t tensor) {
  const LocalTensor& from = source_.layout().ranks[rank].tensors[tensor];
  const LocalTensor& to = layout_.ranks[rank].tensors[tensor];
  const std::byte* source = source_.Base(static_cast<int>(rank), static_cast<int>(tensor));
  const std::span<std::byte> target(Target(rank, tensor), static_cast<std::size_t>(to.Bytes()));
  const Box whole = Box::Whole(from.shape);
  const BoxPlace dense = PlaceIn(whole, from.shape);
  const BoxPlace place = from.stride.empty() ? dense : PlaceInStrided(whole, from.stride);
  const int item_bytes = ItemBytes(from.dtype);
  if (from.dtype == to.dtype) {
    CopyBoxOnHost(ShapeOf(whole), item_bytes, source, place, target.data(), dense);
    return;
  }
  const Conversion conversion = ConversionOf(from.dtype, to.dtype);
  if (!from.stride.empty()) {
    // The digest of a strided conversion is thrown away: packing takes it again from the snapshot.
    static_cast<void>(
        PackAndDigestOnHost(DigestKey(), ShapeOf(whole), conversion, item_bytes, source, place, dense, target));
    return;
  }
  const std::span<const std::byte> dense_source(source, static_cast<std::size_t>(from.Bytes()));
  conversion == Conversion::kF32ToBf16 ? CastF32ToBf16OnHost(dense_source, target)
                                       : CastBf16ToF32OnHost(dense_source, target);
}

Status WeightSnapshot::CopyOnDevice(Deadline deadline) {
  BoxMoveTable table;
  for (std::size_t rank = 0; rank < offset_.size(); ++rank) {
    for (std::size_t t = 0; t < offset_[rank].size(); ++t) {
      const LocalTensor& from = source_.layout().ranks[rank].tensors[t];
      if (offset_[rank][t] == kNotHeld || from.Bytes() == 0) continue;
      const Box whole = Box::Whole(from.shape);
      const BoxPlace dense = PlaceIn(whole, from.shape);
      RETURN_IF_ERROR(table.Add(
          {.shape = ShapeOf(whole),
           .item_bytes = ItemBytes(from.dtype),
           .conversion = ConversionOf(from.dtype, layout_.ranks[rank].tensors[t].dtype),
           .source_bytes = reinterpret_cast<std::int64_t>(source_.Base(static_cast<int>(rank), static_cast<int>(t))),
           .source = from.stride.empty() ? dense : PlaceInStrided(whole, from.stride),
           .target_bytes = reinterpret_cast<std::int64_t>(Target(rank, t)),
           .target = dense,
           .logical = dense}));
    }
  }
  RETURN_IF_ERROR(source_.device()->Move(table, deadline));
  source_.device()->SetReady({});  // the copy is there
  return OkStatus();
}

std::byte* WeightSnapshot::Target(std::size_t rank, std::size_t tensor) const {
  return memory_[rank]->bytes().data() + offset_[rank][tensor];
}

const std::byte* WeightSnapshot::Base(int sender_rank, int tensor) const {
  const auto rank = static_cast<std::size_t>(sender_rank);
  const auto local = static_cast<std::size_t>(tensor);
  return offset_[rank][local] == kNotHeld ? nullptr : Target(rank, local);
}

std::unique_ptr<BoxReader> WeightSnapshot::Read(std::vector<SourceBox> boxes) const {
  return device() == nullptr ? ReadMemory(std::move(boxes)) : ReadDeviceMemory(std::move(boxes), *device());
}

}  // namespace bascule
