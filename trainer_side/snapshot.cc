#include "trainer_side/snapshot.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked_math.h"
#include "base/worker.h"
#include "kernels/cast.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 64;

}  // namespace

HostSnapshot::HostSnapshot(const WeightSource& source, std::vector<TensorSpec> wire)
    : source_(source), wire_(std::move(wire)), layout_(source.layout()) {}

Result<std::unique_ptr<HostSnapshot>> HostSnapshot::Create(const WeightSource& source,
                                                           const std::vector<TensorSpec>& wire, DeviceMemory& memory) {
  std::unique_ptr<HostSnapshot> snapshot(new HostSnapshot(source, wire));
  for (std::size_t rank = 0; rank < snapshot->layout_.ranks.size(); ++rank) {
    ASSIGN_OR_RETURN(auto buffer, memory.Allocate(static_cast<std::size_t>(snapshot->Place(rank))));
    snapshot->memory_.push_back(std::move(buffer));
  }
  return snapshot;
}

std::int64_t HostSnapshot::Place(std::size_t rank) {
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

std::vector<std::optional<DType>> HostSnapshot::TypesOf(const RankLayout& rank) const {
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

void HostSnapshot::Copy() {
  std::vector<Worker> workers;
  for (std::size_t rank = 1; rank < layout_.ranks.size(); ++rank) {
    workers.emplace_back(fmt::format("snapshot-{}", rank), [this, rank](std::stop_token) { CopyRank(rank); });
  }
  CopyRank(0);
  for (Worker& worker : workers) worker.Join();
}

void HostSnapshot::CopyRank(std::size_t rank) {
  for (std::size_t tensor = 0; tensor < offset_[rank].size(); ++tensor) {
    if (offset_[rank][tensor] != kNotHeld) CopyTensor(rank, tensor);
  }
}

void HostSnapshot::CopyTensor(std::size_t rank, std::size_t tensor) {
  const LocalTensor& from = source_.layout().ranks[rank].tensors[tensor];
  const LocalTensor& to = layout_.ranks[rank].tensors[tensor];
  const std::byte* source = source_.Base(static_cast<int>(rank), static_cast<int>(tensor));
  const std::span<std::byte> target = memory_[rank]->bytes().subspan(static_cast<std::size_t>(offset_[rank][tensor]),
                                                                     static_cast<std::size_t>(to.Bytes()));
  const Box whole = Box::Whole(from.shape);
  const BoxPlace dense = PlaceIn(whole, from.shape);
  const BoxPlace place = from.stride.empty() ? dense : PlaceInStrided(whole, from.stride);
  const int item_bytes = ItemBytes(from.dtype);
  if (from.dtype == to.dtype) {
    CopyBoxOnHost(ShapeOf(whole), item_bytes, source, place, target.data(), dense);
    return;
  }
  const Conversion conversion = from.dtype == DType::kF32 ? Conversion::kF32ToBf16 : Conversion::kBf16ToF32;
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

const std::byte* HostSnapshot::Base(int sender_rank, int tensor) const {
  const auto rank = static_cast<std::size_t>(sender_rank);
  const std::int64_t offset = offset_[rank][static_cast<std::size_t>(tensor)];
  return offset == kNotHeld ? nullptr : memory_[rank]->bytes().data() + offset;
}

}  // namespace bascule
