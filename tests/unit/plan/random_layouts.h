// Random pairs of layouts for property tests, and the slow oracle that says what a plan over them has to do.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bridge/layout/layout.h"

namespace bascule {

struct RandomPair {
  Layout sender;
  Layout engine;
};

// Tensors of 0 to 4 dimensions (also without elements); senders that cut in any dimension, unevenly, with empty shards,
// in flat ranges, replicated, in groups that cut differently, inside larger local tensors; engines that fuse, stack,
// cut, replicate and pad.
RandomPair MakeRandomPair(std::mt19937_64& random);

// The flat positions of the elements of `box` in a row-major tensor of `shape`, by walking a counter.
std::vector<std::int64_t> PositionsOf(const Box& box, const Dims& shape);

// What lies where: element e of logical tensor t is IdOf(t, e); padding is kFillId; all else is kGarbage.
using RankMemory = std::vector<std::vector<std::uint64_t>>;  // per local tensor, dense
inline constexpr std::uint64_t kFillId = 0;
inline constexpr std::uint64_t kGarbage = ~std::uint64_t{0};
std::uint64_t IdOf(const std::string& tensor, std::int64_t element);

// The memory of each rank of `layout` as its rows say it should be, element by element.
std::vector<RankMemory> MemoryOf(const Layout& layout);
// The same sizes, all garbage.
std::vector<RankMemory> GarbageOf(const Layout& layout);

}  // namespace bascule
