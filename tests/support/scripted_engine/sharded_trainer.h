// A trainer in miniature: fp32 and bf16 tensors, cut along their first dimension over its ranks, in memory that can be
// taken away; and what an engine must hold after a sync, worked out from the values.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bridge/layout/layout.h"
#include "trainer_side/tensor_source.h"

namespace bascule {

class ShardedTrainer {
 public:
  // Every weight has `rows` rows or a few less, which need not divide by the ranks.
  explicit ShardedTrainer(int trainer_ranks, std::int64_t rows = 24);
  ~ShardedTrainer();
  ShardedTrainer(const ShardedTrainer&) = delete;
  ShardedTrainer& operator=(const ShardedTrainer&) = delete;

  TensorSource Source() const;
  // One rank's part, as the process of that rank describes it.
  TensorSource SourceOf(int rank) const;
  std::int64_t Rows() const { return rows_; }
  void Fill(std::uint32_t seed);               // random values, NaNs, infinities and denormals among them
  void CopyFrom(const ShardedTrainer& other);  // its values; it has as many ranks and rows
  void CopyTensorFrom(const ShardedTrainer& other, std::size_t tensor);  // one of WireTensors
  // From here on a read or write of the tensors ends the program.
  void TakeMemoryAway();
  void GiveMemoryBack();

  // fp32 weights become bf16, norms stay fp32. Sorted by name.
  static std::vector<TensorSpec> WireTensors(std::int64_t rows = 24);
  std::vector<std::vector<std::byte>> WireBytes() const;  // in that order
  // One engine rank holds all; of two each has half the columns of every matrix and all of the rest.
  static Layout EngineLayout(int engine_ranks, std::int64_t rows = 24);
  // The engine rank's part of WireBytes()[tensor].
  std::vector<std::byte> EngineBytes(int engine_ranks, int engine_rank, int tensor) const;

 private:
  struct Shard {
    std::size_t tensor = 0;
    int rank = 0;
    Box box;
    std::size_t offset = 0;  // in memory_
  };

  const int ranks_;
  const std::int64_t rows_;
  std::vector<Shard> shards_;
  std::span<std::byte> memory_;
};

}  // namespace bascule
