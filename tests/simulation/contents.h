// What versions contain: known beforehand, byte by byte, in the trainer and in every engine, worked out from the values
// by code that shares nothing with what is tested.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/sha256.h"
#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule::simulation {

inline constexpr std::int64_t kRows = 60;
inline constexpr Duration kPublishTime = std::chrono::seconds(5);  // of a publish, all phases
inline constexpr int kEngineRanksMost = 2;

// Which tensors a partial version brings.
struct Scope {
  std::vector<std::string> patterns;
  std::vector<std::size_t> tensors;  // of ShardedTrainer::WireTensors, that the patterns match; by hand
};
std::span<const Scope> Scopes();

// Values that a trainer made of all tensors, and what they are on the wire and in engines.
class Values {
 public:
  Values(int trainer_ranks, int number);

  int trainer_ranks() const { return trainer_ranks_; }
  int number() const { return number_; }
  const ShardedTrainer& held() const { return held_; }
  const std::vector<std::byte>& WireBytes(std::size_t tensor) const { return wire_bytes_[tensor]; }
  std::span<const std::byte> EngineBytes(int engine_ranks, int rank, std::size_t tensor) const {
    return engine_bytes_[static_cast<std::size_t>(engine_ranks - 1)][static_cast<std::size_t>(rank)][tensor];
  }

 private:
  const int trainer_ranks_;
  const int number_;
  ShardedTrainer held_;
  std::vector<std::vector<std::byte>> wire_bytes_;                              // by tensor
  std::vector<std::vector<std::vector<std::vector<std::byte>>>> engine_bytes_;  // by ranks of the engine, rank, tensor
};

// One set of weights: whose values each tensor has.
class Content {
 public:
  explicit Content(std::vector<const Values*> tensors);  // borrowed

  int number() const;  // of the newest values
  const Hash256& digest() const { return digest_; }
  std::size_t tensor_count() const { return tensors_.size(); }
  const Values& Of(std::size_t tensor) const { return *tensors_[tensor]; }
  std::span<const std::byte> EngineBytes(int engine_ranks, int rank, std::size_t tensor) const {
    return Of(tensor).EngineBytes(engine_ranks, rank, tensor);
  }

 private:
  const std::vector<const Values*> tensors_;
  const Hash256 digest_;
};

// Made once in a process and shared by all its schedules.
//
// The `number`-th of those that a trainer of so many ranks may hold.
const Content& ContentOf(int trainer_ranks, int number);
// What is in engines' files.
const Content& BaseContent();
// What a partial version is: `sent` within the scope, its base outside.
const Content& Composed(const Content& sent, const Scope& scope, const Content& base);

}  // namespace bascule::simulation
