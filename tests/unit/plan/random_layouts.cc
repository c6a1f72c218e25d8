#include "tests/unit/plan/random_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace bascule {
namespace {

class Generator {
 public:
  explicit Generator(std::mt19937_64& random) : random_(random) {}

  RandomPair Make() {
    pair_.sender.ranks.resize(static_cast<std::size_t>(Between(1, 6)));
    pair_.engine.ranks.resize(static_cast<std::size_t>(Between(1, 4)));
    const std::int64_t families = Between(1, 4);
    for (std::int64_t f = 0; f < families; ++f) AddFamily();
    for (std::size_t t = 0; t < pair_.sender.tensors.size(); ++t) SendTensor(static_cast<std::int32_t>(t));
    return std::move(pair_);
  }

 private:
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }

  Dims RandomShape() {
    Dims shape;
    for (std::int64_t d = Between(0, 4); d > 0; --d) shape.push_back(Chance(4) ? 0 : Chance(20) ? 1 : Between(1, 9));
    if (!shape.empty() && Chance(15)) {  // Large enough to be cut.
      for (std::int64_t& count : shape) count = std::min<std::int64_t>(count, 4);
      shape[0] = Between(100, 400);
    }
    return shape;
  }

  // Logical tensors of equal inner shape, which the engine may fuse or stack.
  void AddFamily() {
    const Dims shape = RandomShape();
    const DType dtype = Chance(50) ? DType::kBf16 : DType::kF32;
    std::vector<std::int32_t> members;
    for (std::int64_t i = Between(1, 3); i > 0; --i) {
      Dims own = shape;
      const bool stackable = Chance(50);
      if (!own.empty() && !stackable) own[0] = Between(1, 6);
      members.push_back(static_cast<std::int32_t>(pair_.engine.tensors.size()));
      const std::string name = fmt::format("t{}", members.back());
      pair_.engine.tensors.push_back({name, dtype, own});
      pair_.sender.tensors.push_back({name, Chance(30) ? DType::kF32 : dtype, own});
    }
    ReceiveFamily(members);
  }

  // Random cuts of [0, size) over `parts`, some of them empty.
  std::vector<std::int64_t> Cuts(std::int64_t size, std::int64_t parts) {
    std::vector<std::int64_t> cuts = {0, size};
    for (std::int64_t i = 1; i < parts; ++i) cuts.push_back(Between(0, size));
    std::sort(cuts.begin(), cuts.end());
    return cuts;
  }

  Box Part(const Dims& shape, int d, std::int64_t begin, std::int64_t end) {
    Box box = Box::Whole(shape);
    box.offset[d] = begin;
    box.extent[d] = end - begin;
    return box;
  }

  // --- engine ---

  // What each engine rank needs of a tensor: cut in one dimension, or whole; neighbours may share a part.
  std::vector<Box> EngineParts(const Dims& shape) {
    const std::size_t ranks = pair_.engine.ranks.size();
    std::vector<Box> parts(ranks, Box::Whole(shape));
    if (shape.empty() || Chance(30)) return parts;
    const int d = static_cast<int>(Between(0, shape.size() - 1));
    const std::vector<std::int64_t> cuts = Cuts(shape[d], static_cast<std::int64_t>(ranks));
    const bool overlap = Chance(30);
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::int64_t begin = overlap ? Between(0, cuts[r]) : cuts[r];
      parts[r] = Part(shape, d, begin, cuts[r + 1]);
    }
    return parts;
  }

  void ReceiveFamily(const std::vector<std::int32_t>& members) {
    std::vector<std::vector<Box>> parts;  // per member, per rank
    for (const std::int32_t t : members) parts.push_back(EngineParts(SpecOf(t).shape));
    for (std::size_t r = 0; r < pair_.engine.ranks.size(); ++r) {
      std::vector<std::pair<std::int32_t, Box>> shards;
      for (std::size_t i = 0; i < members.size(); ++i) shards.emplace_back(members[i], parts[i][r]);
      StoreOnEngine(pair_.engine.ranks[r], shards);
    }
  }

  const TensorSpec& SpecOf(std::int32_t t) const { return pair_.engine.tensors[static_cast<std::size_t>(t)]; }

  void StoreOnEngine(RankLayout& rank, const std::vector<std::pair<std::int32_t, Box>>& shards) {
    const Dims& first = shards[0].second.extent;
    const auto matches = [&](int from) {
      return std::all_of(shards.begin(), shards.end(), [&](const auto& shard) {
        const Dims& extent = shard.second.extent;
        return extent.size() == first.size() && std::equal(extent.begin() + from, extent.end(), first.begin() + from);
      });
    };
    if (first.size() < kMaxDims && matches(0) && Chance(30)) return Stack(rank, shards);
    if (!first.empty() && matches(1) && Chance(70)) return Fuse(rank, shards);
    for (const auto& shard : shards) Fuse(rank, {shard});
  }

  LocalTensor& NewLocal(RankLayout& rank, DType dtype, const Dims& shape) {
    rank.tensors.push_back({fmt::format("local{}", rank.tensors.size()), dtype, shape, {}});
    return rank.tensors.back();
  }

  // One behind the other in dimension 0, with padding behind the last.
  void Fuse(RankLayout& rank, const std::vector<std::pair<std::int32_t, Box>>& shards) {
    const auto local = static_cast<std::int32_t>(rank.tensors.size());
    Dims shape = shards[0].second.extent;
    std::int64_t row = 0;
    for (const auto& [t, box] : shards) {
      Box local_box = Box::Whole(box.extent);
      if (!shape.empty()) local_box.offset[0] = row;
      rank.rows.push_back({local, local_box, t, box});
      row += shape.empty() ? 0 : box.extent[0];
    }
    if (!shape.empty()) {
      const std::int64_t padding = Chance(30) ? Between(1, 3) : 0;
      shape[0] = row + padding;
      Box fill = Box::Whole(shape);
      fill.offset[0] = row;
      fill.extent[0] = padding;
      if (padding > 0) rank.rows.push_back({local, fill, kFill, {}});
    }
    NewLocal(rank, SpecOf(shards[0].first).dtype, shape);
  }

  // Each at its index of a new dimension, in front or behind.
  void Stack(RankLayout& rank, const std::vector<std::pair<std::int32_t, Box>>& shards) {
    const auto local = static_cast<std::int32_t>(rank.tensors.size());
    const Dims& inner = shards[0].second.extent;
    const bool front = Chance(60);
    const auto with = [&](std::int64_t value, const Dims& dims) {
      Dims result;
      if (front) result.push_back(value);
      for (const std::int64_t v : dims) result.push_back(v);
      if (!front) result.push_back(value);
      return result;
    };
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const Box local_box{with(static_cast<std::int64_t>(i), Dims::Zeros(inner.size())), with(1, inner)};
      rank.rows.push_back({local, local_box, shards[i].first, shards[i].second});
    }
    NewLocal(rank, SpecOf(shards[0].first).dtype, with(static_cast<std::int64_t>(shards.size()), inner));
  }

  // --- sender ---

  void SendTensor(std::int32_t t) {
    const Dims& shape = SpecOf(t).shape;
    const auto ranks = static_cast<std::int64_t>(pair_.sender.ranks.size());
    switch (Between(0, 4)) {
      case 0:
        return Hold(Between(0, ranks - 1), t, Box::Whole(shape));
      case 1:
        for (std::int64_t r = 0; r < ranks; ++r) Hold(r, t, Box::Whole(shape));
        return;
      case 2:
        return HoldCut(t, 0, ranks);
      case 3:
        return HoldRanges(t, 0, ranks);
      default: {  // Two groups, each with the whole tensor, cut in its own way.
        const std::int64_t half = ranks / 2;
        if (half > 0) Chance(50) ? HoldCut(t, 0, half) : HoldRanges(t, 0, half);
        Chance(50) ? HoldCut(t, half, ranks) : HoldRanges(t, half, ranks);
      }
    }
  }

  void HoldCut(std::int32_t t, std::int64_t first_rank, std::int64_t end_rank) {
    const Dims& shape = SpecOf(t).shape;
    if (shape.empty()) return Hold(first_rank, t, Box::Whole(shape));
    const int d = static_cast<int>(Between(0, shape.size() - 1));
    const std::vector<std::int64_t> cuts = Cuts(shape[d], end_rank - first_rank);
    for (std::int64_t r = first_rank; r < end_rank; ++r) {
      const auto i = static_cast<std::size_t>(r - first_rank);
      Hold(r, t, Part(shape, d, cuts[i], cuts[i + 1]));
    }
  }

  void HoldRanges(std::int32_t t, std::int64_t first_rank, std::int64_t end_rank) {
    const Dims& shape = SpecOf(t).shape;
    const std::vector<std::int64_t> cuts = Cuts(Box::Whole(shape).Elements(), end_rank - first_rank);
    for (std::int64_t r = first_rank; r < end_rank; ++r) {
      const auto i = static_cast<std::size_t>(r - first_rank);
      for (const Box& box : BoxesOfRange(shape, cuts[i], cuts[i + 1])) Hold(r, t, box);
    }
  }

  // In a local tensor of its own, which may be larger, or have a dimension of extent 1 more or fewer.
  void Hold(std::int64_t sender_rank, std::int32_t t, const Box& box) {
    RankLayout& rank = pair_.sender.ranks[static_cast<std::size_t>(sender_rank)];
    const auto local = static_cast<std::int32_t>(rank.tensors.size());
    Dims extent;
    const bool squeeze = Chance(30);
    if (Chance(20)) extent.push_back(1);
    for (const std::int64_t count : box.extent) {
      if (!squeeze || count != 1) extent.push_back(count);
    }
    Box local_box = Box::Whole(extent);
    Dims shape = extent;
    for (int d = 0; d < shape.size(); ++d) {
      if (!Chance(20)) continue;
      local_box.offset[d] = Between(0, 2);
      shape[d] += local_box.offset[d] + Between(0, 2);
    }
    NewLocal(rank, pair_.sender.tensors[static_cast<std::size_t>(t)].dtype, shape);
    rank.rows.push_back({local, local_box, t, box});
  }

  std::mt19937_64& random_;
  RandomPair pair_;
};

}  // namespace

RandomPair MakeRandomPair(std::mt19937_64& random) { return Generator(random).Make(); }

std::vector<std::int64_t> PositionsOf(const Box& box, const Dims& shape) {
  std::vector<std::int64_t> positions;
  Dims index = Dims::Zeros(box.dims());
  for (std::int64_t n = 0; n < box.Elements(); ++n) {
    std::int64_t position = 0;
    for (int d = 0; d < box.dims(); ++d) position = position * shape[d] + box.offset[d] + index[d];
    positions.push_back(position);
    for (int d = box.dims() - 1; d >= 0 && ++index[d] == box.extent[d]; --d) index[d] = 0;
  }
  return positions;
}

std::uint64_t IdOf(const std::string& tensor, std::int64_t element) {
  return (std::hash<std::string>{}(tensor) << 24 | 1) + (static_cast<std::uint64_t>(element) << 1);
}

std::vector<RankMemory> GarbageOf(const Layout& layout) {
  std::vector<RankMemory> memory;
  for (const RankLayout& rank : layout.ranks) {
    RankMemory& of_rank = memory.emplace_back();
    for (const LocalTensor& tensor : rank.tensors) {
      of_rank.emplace_back(static_cast<std::size_t>(Box::Whole(tensor.shape).Elements()), kGarbage);
    }
  }
  return memory;
}

std::vector<RankMemory> MemoryOf(const Layout& layout) {
  std::vector<RankMemory> memory = GarbageOf(layout);
  for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
    for (const MapRow& row : layout.ranks[r].rows) {
      const auto local = static_cast<std::size_t>(row.local);
      const std::vector<std::int64_t> to = PositionsOf(row.local_box, layout.ranks[r].tensors[local].shape);
      std::vector<std::int64_t> from;
      if (row.logical != kFill) {
        from = PositionsOf(row.logical_box, layout.tensors[static_cast<std::size_t>(row.logical)].shape);
      }
      for (std::size_t i = 0; i < to.size(); ++i) {
        memory[r][local][static_cast<std::size_t>(to[i])] =
            row.logical == kFill ? kFillId : IdOf(layout.tensors[static_cast<std::size_t>(row.logical)].name, from[i]);
      }
    }
  }
  return memory;
}

}  // namespace bascule
