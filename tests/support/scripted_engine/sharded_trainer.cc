#include "tests/support/scripted_engine/sharded_trainer.h"

#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "base/checked_math.h"

namespace bascule {
namespace {

constexpr std::int64_t kPageBytes = 4096;

// As the trainer holds them, sorted by name.
std::vector<TensorSpec> TrainerTensors(std::int64_t rows) {
  return {{.name = "embed", .dtype = DType::kBf16, .shape = {rows, 32}},
          {.name = "layer.bias", .dtype = DType::kF32, .shape = {rows - 1}},
          {.name = "layer.weight", .dtype = DType::kF32, .shape = {rows, 40}},
          {.name = "norm", .dtype = DType::kF32, .shape = {50}},
          {.name = "scale", .dtype = DType::kF32, .shape = {}},
          {.name = "up.weight", .dtype = DType::kF32, .shape = {rows - 3, 34}}};
}

bool IsKeptInF32(const TensorSpec& tensor) { return tensor.name == "norm" || tensor.name == "scale"; }

// The nearer of the two neighbours in bf16, by distance; the even one of two equally near.
std::uint16_t NearestBf16(std::uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  if (bits % 0x10000 == 0) return static_cast<std::uint16_t>(bits >> 16);
  const std::uint32_t below = bits & 0xffff0000;
  const std::uint32_t above = below + 0x10000;
  // Beyond the largest finite bf16 the next step is as far as the one before it.
  const double low = std::bit_cast<float>(below);
  const double step = std::abs(low - std::bit_cast<float>(below - 0x10000));
  const double high =
      std::isinf(std::bit_cast<float>(above)) ? std::copysign(std::abs(low) + step, low) : std::bit_cast<float>(above);
  const double to_low = std::abs(value - low);
  const double to_high = std::abs(high - value);
  const bool low_is_even = (below >> 16) % 2 == 0;
  return static_cast<std::uint16_t>((to_low < to_high || (to_low == to_high && low_is_even) ? below : above) >> 16);
}

std::vector<std::byte> ToWire(const TensorSpec& tensor, std::span<const std::byte> held) {
  if (tensor.dtype == DType::kBf16 || IsKeptInF32(tensor)) return {held.begin(), held.end()};
  std::vector<std::byte> wire(held.size() / 2);
  for (std::size_t i = 0; i < held.size() / 4; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &held[i * 4], 4);
    const std::uint16_t rounded = NearestBf16(bits);
    std::memcpy(&wire[i * 2], &rounded, 2);
  }
  return wire;
}

}  // namespace

ShardedTrainer::ShardedTrainer(int trainer_ranks, std::int64_t rows) : ranks_(trainer_ranks), rows_(rows) {
  const std::vector<TensorSpec> tensors = TrainerTensors(rows);
  std::size_t end = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const TensorSpec& tensor = tensors[t];
    for (int rank = 0; rank < (tensor.shape.empty() ? 1 : ranks_); ++rank) {
      Box box = Box::Whole(tensor.shape);
      if (!tensor.shape.empty()) {
        const std::int64_t begin = tensor.shape[0] * rank / ranks_;
        box.offset[0] = begin;
        box.extent[0] = tensor.shape[0] * (rank + 1) / ranks_ - begin;
      }
      shards_.push_back({.tensor = t, .rank = rank, .box = box, .offset = end});
      end += static_cast<std::size_t>(box.Elements() * ItemBytes(tensor.dtype));
      end = static_cast<std::size_t>(RoundUp(static_cast<std::int64_t>(end), 16));
    }
  }
  const auto size = static_cast<std::size_t>(RoundUp(static_cast<std::int64_t>(end), kPageBytes));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memory_ = {static_cast<std::byte*>(memory), size};
  Fill(1);
}

ShardedTrainer::~ShardedTrainer() { munmap(memory_.data(), memory_.size()); }

TensorSource ShardedTrainer::Source() const {
  const std::vector<TensorSpec> tensors = TrainerTensors(rows_);
  TensorSource source(ranks_);
  for (const Shard& shard : shards_) {
    CHECK(source
              .Add(shard.rank, {.tensor = tensors[shard.tensor],
                                .box = shard.box,
                                .data = memory_.data() + shard.offset,
                                .stride = {}})
              .ok());
  }
  return source;
}

TensorSource ShardedTrainer::SourceOf(int rank) const {
  const std::vector<TensorSpec> tensors = TrainerTensors(rows_);
  TensorSource source(/*trainer_ranks=*/1);
  for (const Shard& shard : shards_) {
    if (shard.rank != rank) continue;
    CHECK(source
              .Add(0, {.tensor = tensors[shard.tensor],
                       .box = shard.box,
                       .data = memory_.data() + shard.offset,
                       .stride = {}})
              .ok());
  }
  return source;
}

void ShardedTrainer::CopyFrom(const ShardedTrainer& other) {
  CHECK(memory_.size() == other.memory_.size());
  std::memcpy(memory_.data(), other.memory_.data(), memory_.size());
}

void ShardedTrainer::CopyTensorFrom(const ShardedTrainer& other, std::size_t tensor) {
  CHECK(ranks_ == other.ranks_ && rows_ == other.rows_);
  const DType dtype = TrainerTensors(rows_)[tensor].dtype;
  for (const Shard& shard : shards_) {
    if (shard.tensor != tensor) continue;
    const auto bytes = static_cast<std::size_t>(shard.box.Elements() * ItemBytes(dtype));
    std::memcpy(&memory_[shard.offset], &other.memory_[shard.offset], bytes);
  }
}

void ShardedTrainer::Fill(std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<TensorSpec> tensors = TrainerTensors(rows_);
  for (std::size_t at = 0; at < memory_.size(); at += 4) {
    float value = std::ldexp(static_cast<float>(random()) / 4294967296.0f - 0.5f, static_cast<int>(random() % 20) - 10);
    switch (random() % 64) {
      case 0:
        value = std::numeric_limits<float>::quiet_NaN();
        break;
      case 1:
        value = std::numeric_limits<float>::infinity();
        break;
      case 2:
        value = std::numeric_limits<float>::denorm_min() * static_cast<float>(random() % 100000);
        break;
      case 3:
        value = std::bit_cast<float>(static_cast<std::uint32_t>(random() << 17) | 0x8000U);
        break;  // a tie
      default:
        break;
    }
    std::memcpy(&memory_[at], &value, 4);
  }
}

void ShardedTrainer::TakeMemoryAway() { CHECK(mprotect(memory_.data(), memory_.size(), PROT_NONE) == 0); }

void ShardedTrainer::GiveMemoryBack() { CHECK(mprotect(memory_.data(), memory_.size(), PROT_READ | PROT_WRITE) == 0); }

std::vector<TensorSpec> ShardedTrainer::WireTensors(std::int64_t rows) {
  std::vector<TensorSpec> tensors = TrainerTensors(rows);
  for (TensorSpec& tensor : tensors) {
    if (!IsKeptInF32(tensor)) tensor.dtype = DType::kBf16;
  }
  return tensors;
}

std::vector<std::vector<std::byte>> ShardedTrainer::WireBytes() const {
  const std::vector<TensorSpec> tensors = TrainerTensors(rows_);
  std::vector<std::vector<std::byte>> held(tensors.size());
  // Cut along the first dimension, shards of a tensor follow each other.
  for (const Shard& shard : shards_) {
    const auto bytes = static_cast<std::size_t>(shard.box.Elements() * ItemBytes(tensors[shard.tensor].dtype));
    const std::span<const std::byte> data = memory_.subspan(shard.offset, bytes);
    held[shard.tensor].insert(held[shard.tensor].end(), data.begin(), data.end());
  }
  std::vector<std::vector<std::byte>> wire;
  for (std::size_t t = 0; t < tensors.size(); ++t) wire.push_back(ToWire(tensors[t], held[t]));
  return wire;
}

Layout ShardedTrainer::EngineLayout(int engine_ranks, std::int64_t rows) {
  if (engine_ranks == 1) return PlainLayout(WireTensors(rows));
  Layout layout{.tensors = WireTensors(rows), .ranks = std::vector<RankLayout>(2)};
  for (int rank = 0; rank < 2; ++rank) {
    RankLayout& mine = layout.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      const TensorSpec& tensor = layout.tensors[t];
      Box part = Box::Whole(tensor.shape);
      if (tensor.shape.size() == 2) {
        part.extent[1] = tensor.shape[1] / 2;
        part.offset[1] = rank * part.extent[1];
      }
      mine.tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = part.extent, .stride = {}});
      mine.rows.push_back({.local = static_cast<std::int32_t>(t),
                           .local_box = Box::Whole(part.extent),
                           .logical = static_cast<std::int32_t>(t),
                           .logical_box = part});
    }
  }
  return layout;
}

std::vector<std::byte> ShardedTrainer::EngineBytes(int engine_ranks, int engine_rank, int tensor) const {
  const TensorSpec spec = WireTensors(rows_)[static_cast<std::size_t>(tensor)];
  const std::vector<std::byte> whole = WireBytes()[static_cast<std::size_t>(tensor)];
  if (engine_ranks == 1 || spec.shape.size() < 2) return whole;
  const auto row_bytes = static_cast<std::size_t>(spec.shape[1] * ItemBytes(spec.dtype));
  std::vector<std::byte> part;
  for (std::size_t row = 0; row < whole.size() / row_bytes; ++row) {
    const std::span<const std::byte> half = std::span(whole).subspan(
        row * row_bytes + static_cast<std::size_t>(engine_rank) * row_bytes / 2, row_bytes / 2);
    part.insert(part.end(), half.begin(), half.end());
  }
  return part;
}

}  // namespace bascule
