// What versions contain: known beforehand, byte by byte, in the trainer and in every engine, worked out from the values
// by code that shares nothing with what is tested.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/sha256.h"
#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule::simulation {

inline constexpr std::int64_t kRows = 60;
inline constexpr Duration kPublishTime = std::chrono::seconds(5);  // of a publish, all phases
inline constexpr int kEngineRanksMost = 2;

class Content {
 public:
  // The `number`-th of those that a trainer of so many ranks may hold.
  Content(int trainer_ranks, int number);

  int number() const { return number_; }
  const ShardedTrainer& values() const { return values_; }
  const Hash256& digest() const { return digest_; }
  std::size_t tensor_count() const { return engine_bytes_.front().front().size(); }
  std::span<const std::byte> EngineBytes(int engine_ranks, int rank, std::size_t tensor) const {
    return engine_bytes_[static_cast<std::size_t>(engine_ranks - 1)][static_cast<std::size_t>(rank)][tensor];
  }

 private:
  const int number_;
  ShardedTrainer values_;
  Hash256 digest_;
  std::vector<std::vector<std::vector<std::vector<std::byte>>>> engine_bytes_;  // by ranks of the engine, rank, tensor
};

// Made once in a process and shared by all its schedules.
const Content& ContentOf(int trainer_ranks, int number);
const Content& BaseContent();                       // what is in engines' files
const Content* FindContent(const Hash256& digest);  // among those made; null when there is none

}  // namespace bascule::simulation
