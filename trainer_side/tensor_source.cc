#include "trainer_side/tensor_source.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"
#include "bridge/send/device_reader.h"

namespace bascule {
namespace {

Status BadShard(std::string_view name, const std::string& why) {
  return Status::InvalidArgument("bad_shard", fmt::format("tensor={} {}", name, why));
}
Status BadShard(const ShardView& shard, const std::string& why) { return BadShard(shard.tensor.name, why); }

// The bytes of the tensor must be a number we can count with; boxes inside it then are too.
bool SizeIsCountable(const TensorSpec& tensor) {
  const std::optional<std::int64_t> elements = CheckedProduct(tensor.shape);
  return elements && CheckedMul<std::int64_t>(*elements, ItemBytes(tensor.dtype));
}

Status CheckShard(const ShardView& shard) {
  if (shard.tensor.name.empty()) return BadShard(shard, "has no name");
  if (!SizeIsCountable(shard.tensor)) {
    return BadShard(shard, fmt::format("shape={} is no size", shard.tensor.shape.ToString()));
  }
  if (shard.box.offset.size() != shard.box.extent.size() || !CheckedProduct(shard.box.extent) ||
      !Contains(Box::Whole(shard.tensor.shape), shard.box)) {
    return BadShard(shard, fmt::format("box={} outside shape={}", shard.box.ToString(), shard.tensor.shape.ToString()));
  }
  if (!shard.stride.empty() && shard.stride.size() != shard.box.dims()) {
    return BadShard(shard, fmt::format("stride={} for box={}", shard.stride.ToString(), shard.box.ToString()));
  }
  if (shard.data == nullptr && !shard.box.Empty()) return BadShard(shard, "has no data");
  return OkStatus();
}

}  // namespace

TensorSource::TensorSource(int trainer_ranks) : data_(static_cast<std::size_t>(trainer_ranks)) {
  layout_.ranks.resize(static_cast<std::size_t>(trainer_ranks));
}

TensorSource::TensorSource(int trainer_ranks, const WeightSource& backing) : TensorSource(trainer_ranks) {
  backing_ = &backing;
}

TensorSource::TensorSource(int trainer_ranks, std::vector<TensorSpec> tensors) : TensorSource(trainer_ranks) {
  layout_.tensors = std::move(tensors);
  for (std::size_t t = 0; t < layout_.tensors.size(); ++t) logical_of_.try_emplace(layout_.tensors[t].name, t);
}

Status TensorSource::Add(int trainer_rank, const ShardView& shard) {
  RETURN_IF_ERROR(CheckTrainerRank(trainer_rank, shard.tensor.name));
  RETURN_IF_ERROR(CheckShard(shard));
  const auto [known, is_new] = logical_of_.try_emplace(shard.tensor.name, layout_.tensors.size());
  if (is_new) {
    layout_.tensors.push_back(shard.tensor);
  } else if (const TensorSpec& before = layout_.tensors[known->second]; before != shard.tensor) {
    return BadShard(shard,
                    fmt::format("{} {} was {} {} before", DTypeName(shard.tensor.dtype), shard.tensor.shape.ToString(),
                                DTypeName(before.dtype), before.shape.ToString()));
  }
  RankLayout& rank = layout_.ranks[static_cast<std::size_t>(trainer_rank)];
  const auto local = static_cast<std::int32_t>(rank.tensors.size());
  // Several shards of one tensor on one rank are told apart by their box.
  rank.tensors.push_back({.name = shard.tensor.name + shard.box.ToString(),
                          .dtype = shard.tensor.dtype,
                          .shape = shard.box.extent,
                          .stride = shard.stride});
  rank.rows.push_back({.local = local,
                       .local_box = Box::Whole(shard.box.extent),
                       .logical = static_cast<std::int32_t>(known->second),
                       .logical_box = shard.box});
  data_[static_cast<std::size_t>(trainer_rank)].push_back(static_cast<const std::byte*>(shard.data));
  return OkStatus();
}

Status TensorSource::AddLocal(int trainer_rank, const LocalTensor& local, std::vector<MapRow> rows, const void* data) {
  RETURN_IF_ERROR(CheckTrainerRank(trainer_rank, local.name));
  for (MapRow& row : rows) row.local = 0;
  RankLayout alone{.tensors = {local}, .rows = std::move(rows)};
  RETURN_IF_ERROR(CheckRank(alone, layout_.tensors));
  const bool is_read =
      std::ranges::any_of(alone.rows, [](const MapRow& row) { return row.logical != kFill && !row.local_box.Empty(); });
  if (is_read && data == nullptr) return BadShard(local.name, "has no data");
  RankLayout& rank = layout_.ranks[static_cast<std::size_t>(trainer_rank)];
  for (MapRow& row : alone.rows) {
    row.local = static_cast<std::int32_t>(rank.tensors.size());
    rank.rows.push_back(row);
  }
  rank.tensors.push_back(local);
  data_[static_cast<std::size_t>(trainer_rank)].push_back(static_cast<const std::byte*>(data));
  return OkStatus();
}

Status TensorSource::AddRank(int trainer_rank, const RankLayout& rank, std::span<const void* const> data) {
  if (data.size() != rank.tensors.size()) {
    return BadShard(fmt::format("trainer_rank={}", trainer_rank),
                    fmt::format("{} addresses for {} tensors", data.size(), rank.tensors.size()));
  }
  std::vector<std::vector<MapRow>> rows_of(rank.tensors.size());
  for (const MapRow& row : rank.rows) {
    if (row.local < 0 || std::cmp_greater_equal(row.local, rows_of.size())) {
      return Status::InvalidArgument("bad_layout", fmt::format("local index {} of {}", row.local, rows_of.size()));
    }
    rows_of[static_cast<std::size_t>(row.local)].push_back(row);
  }
  for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
    RETURN_IF_ERROR(AddLocal(trainer_rank, rank.tensors[t], std::move(rows_of[t]), data[t]));
  }
  return OkStatus();
}

Status TensorSource::CheckTrainerRank(int trainer_rank, std::string_view name) const {
  if (trainer_rank >= 0 && std::cmp_less(trainer_rank, layout_.ranks.size())) return OkStatus();
  return BadShard(name, fmt::format("trainer_rank={} of {}", trainer_rank, layout_.ranks.size()));
}

Status TensorSource::CheckReachable() const {
  if (device_ == nullptr) return OkStatus();
  for (std::size_t rank = 0; rank < layout_.ranks.size(); ++rank) {
    const std::vector<LocalTensor>& tensors = layout_.ranks[rank].tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      // Where elements lie apart, the first one stands for all.
      const std::int64_t bytes = tensors[t].stride.empty() ? tensors[t].Bytes() : ItemBytes(tensors[t].dtype);
      if (data_[rank][t] == nullptr || tensors[t].Bytes() == 0) continue;
      const Status reached =
          device_->device().CheckReachable(std::span(data_[rank][t], static_cast<std::size_t>(bytes)));
      RETURN_IF_ERROR(reached.WithContext(fmt::format("tensor {} of trainer rank {}", tensors[t].name, rank)));
    }
  }
  return OkStatus();
}

const std::byte* TensorSource::Base(int sender_rank, int tensor) const {
  return data_[static_cast<std::size_t>(sender_rank)][static_cast<std::size_t>(tensor)];
}

std::unique_ptr<BoxReader> TensorSource::Read(std::vector<SourceBox> boxes) const {
  if (backing_ != nullptr) return backing_->Read(std::move(boxes));
  return device_ == nullptr ? ReadMemory(std::move(boxes)) : ReadDeviceMemory(std::move(boxes), *device_);
}

void TensorSource::Release(std::span<const std::byte> memory) const {
  if (backing_ != nullptr) backing_->Release(memory);
}

}  // namespace bascule
