// The part of one engine rank in a forward pass on its device: weights, activations, key/value state and a stream.
// Every rank keeps the residual of all rows and normalises it itself; what it multiplies with its columns of o_proj and
// down_proj, and the rows of the embedding that it holds, are summands that all ranks add up (DeviceCollective) between
// two calls.
//
// Each function enqueues on the rank's stream and returns; it may be captured.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/decode_devices.h"
#include "engine_side/decode/decoder.h"
#include "engine_side/decode/device_arena.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/rank_weights.h"
#include "engine_side/decode/step_tables.h"

namespace bascule {

class DeviceRank {
 public:
  struct Sizes {
    std::int64_t rows = 0, logits = 0;  // of one step, padding included
    KvShape kv;
    std::int64_t pages = 0;
    std::int64_t table_bytes = 0;
  };
  // All references outlive it.
  //
  // ResourceExhausted "device_memory"; Unavailable "no_cublas"; errors of the device
  static Result<std::unique_ptr<DeviceRank>> Create(const DecoderOptions& options, const DecodeDevices& devices,
                                                    int rank, const Sizes& sizes);

  // The weights that the functions below read from now on.
  void Use(RankWeights weights) { weights_ = std::move(weights); }

  Status CopyPage(std::int32_t from, std::int32_t to);
  // Rows of the embedding that this rank holds, zeros for the others: a summand of the residual.
  Status Embed(const StepTables& tables, const StepShape& shape);
  // The summand of the residual that attention makes.
  Status Attend(std::int64_t layer, const StepTables& tables, const StepShape& shape);
  // Adds the sum of the summands, then makes the next.
  Status FeedForward(std::int64_t layer, const StepShape& shape);
  // Adds the last sum. The logits of this rank's vocabulary rows; the first rank's lie where all are gathered.
  Status Logits(const StepTables& tables, const StepShape& shape);
  // On the first rank: what `other` computed goes to its columns. Its work has been waited for.
  Status GatherLogits(const DeviceRank& other, const StepShape& shape);

  Device& device() { return device_; }
  DeviceStream& stream() { return *stream_; }
  float* summand() { return alone() ? residual_ : product_; }
  float* residual() { return residual_; }
  const float* logits() const { return logits_; }
  std::byte* table_block() { return block_; }

 private:
  DeviceRank(const DecoderOptions& options, const DecodeDevices& devices, int rank, const Sizes& sizes);
  Status Allocate(const DecodeDevices& devices);
  Status UploadAngles();

  bool alone() const { return shape_.ranks == 1; }
  std::int64_t own_outputs() const;  // vocabulary rows without padding
  const LayerWeights& Layer(std::int64_t layer) const { return weights_.layers[static_cast<std::size_t>(layer)]; }
  PagedRows Cache(std::int64_t layer, const StepTables& tables) const;
  Status Norm(const float* x, std::int64_t rows, WeightView w, float* y);
  Status Multiply(const float* x, std::int64_t rows, std::int64_t k, WeightView w, std::int64_t outputs, float* y);
  Status AddBias(WeightView bias, std::int64_t rows, std::int64_t size, float* y);
  // The product with the rank's input columns goes to the residual itself where there is one rank.
  Status MakeSummand(const float* x, std::int64_t rows, std::int64_t k, WeightView w);
  Status AddSum(std::int64_t rows, WeightView bias);
  Status Rotate(std::int64_t layer, std::int64_t rows);
  Status AttendToCache(std::int64_t layer, const StepTables& tables, const StepShape& shape);

  const ModelConfig& config_;
  const RankShape& shape_;
  const int rank_;
  const Sizes sizes_;
  Device& device_;
  const DeviceKernels& kernels_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceGemm> gemm_;
  RankWeights weights_;

  DeviceArena arena_;
  std::byte* block_ = nullptr;  // the copy of the step's tables
  float *residual_ = nullptr, *product_ = nullptr, *normed_ = nullptr;
  float *qkv_ = nullptr, *attended_ = nullptr, *gate_up_ = nullptr, *gated_ = nullptr;
  float *cosines_ = nullptr, *sines_ = nullptr;          // of the step's rows
  float *all_cosines_ = nullptr, *all_sines_ = nullptr;  // of every position
  float *wanted_ = nullptr, *logits_ = nullptr,
        *others_ = nullptr;  // rows that want logits; the first rank's: all logits
  float* scratch_ = nullptr;
  std::int64_t scratch_floats_ = 0;
  std::unique_ptr<DeviceBuffer> pool_;
};

}  // namespace bascule
