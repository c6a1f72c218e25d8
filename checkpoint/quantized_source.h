// A source whose linear weights are quantised on the way: FP8 in blocks of 128 x 128 (kernels/quantize.h). Its other
// tensors are those of the source that it is made from.
//
// A weight is quantised as a whole logical tensor, before any rank's share is cut out of it, so the bytes of a rank
// depend on nothing but the weight. Memory: one byte for each quantised weight, and its scales, until this goes.
//
// Thread-safety: thread-safe once made.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bridge/send/weight_source.h"

namespace bascule {

// Logical names. The weight keeps its name and becomes F8_E4M3; its scales are F32.
struct QuantizedWeight {
  std::string weight;
  std::string scale_inv;
};

class QuantizedSource final : public WeightSource {
 public:
  // Quantises at once, on all cores. Weights are BF16, or F32, which is rounded to BF16 first. Borrows `source`.
  //
  // In the layout a quantised weight keeps its stored name, or has its logical one where it is a part of a stored
  // tensor. Its scales have the same name and "_scale_inv".
  //
  // InvalidArgument "not_finite"         names the weight, row and column
  // InvalidArgument "cannot_quantize"    a weight that is neither BF16 nor F32, or has other than two dimensions
  // FailedPrecondition "tensor_missing"  the source has no such weight, or not all of it; Cancelled "cancelled"; as
  // WeightSource::Read
  static Result<std::unique_ptr<QuantizedSource>> Make(const WeightSource& source,
                                                       const std::vector<QuantizedWeight>& weights,
                                                       const std::stop_token& stop);

  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;
  void Release(std::span<const std::byte> memory) const override;

 private:
  struct Job;  // one weight: where it comes from and goes to

  struct RowRef;

  explicit QuantizedSource(const WeightSource& source)
      : source_(source), layout_(source.layout()), own_(layout_.ranks.size()) {}
  Result<std::vector<Job>> AddWeights(const std::vector<QuantizedWeight>& weights);
  Status AddWeight(const QuantizedWeight& weight, std::int32_t logical, Job& job);
  bool IsWhole(const RowRef& ref) const;
  std::pair<std::size_t, std::size_t> PlaceOfCodes(const Job& job, std::int32_t logical);
  std::size_t AddLocal(std::size_t rank, std::string name, std::int32_t logical);
  std::size_t AddOwn(std::size_t rank, std::size_t local, const TensorSpec& logical);
  Status Quantize(const std::vector<Job>& jobs, const std::stop_token& stop) const;
  Status Gather(const Job& job, std::span<std::byte> stored) const;
  Status QuantizeOne(const Job& job, std::vector<std::byte>& stored, std::vector<std::byte>& bf16) const;
  bool IsOwn(const std::byte* base) const { return base >= memory_.get() && base < memory_.get() + memory_bytes_; }

  const WeightSource& source_;
  Layout layout_;
  std::vector<std::vector<std::optional<std::size_t>>> own_;  // per rank and local tensor: its place in memory_
  std::size_t memory_bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace bascule
