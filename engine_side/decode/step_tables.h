// What a step tells the devices: tokens, positions and page tables of its rows, which of them want logits, and the
// rules to draw by. Written into one block of pinned memory and copied as it is, so that a graph finds everything where
// it was when it was captured.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "engine_side/decode/step.h"
#include "kernels/sample_device.h"

namespace bascule {

struct StepTableSizes {
  std::int64_t rows = 0;         // of one step, padding included
  std::int64_t logits = 0;       // likewise
  std::int64_t table_pages = 0;  // of one request
  std::int64_t page_tokens = 0;
};

// How a step is laid out.
struct StepShape {
  std::int64_t rows = 0;       // that are computed; those beyond the step's own are padding
  std::int64_t logits = 0;     // likewise
  std::int64_t positions = 0;  // no row attends to more
};

class StepTables {
 public:
  // Where the tables lie in a copy of the block.
  struct View {
    const std::int32_t* tokens = nullptr;     // -1: padding
    const std::int32_t* positions = nullptr;  // likewise
    const std::int32_t* first_page = nullptr;
    const std::int32_t* logit_rows = nullptr;  // which row the i-th logits are of; -1: padding
    const std::int32_t* page_tables = nullptr;
    const SampleRow* draws = nullptr;
  };

  // Errors of the device
  static Result<StepTables> Create(Device& device, const StepTableSizes& sizes);

  // For the rows of a step; the rest of `shape` is padding. What an earlier step copied from here has been copied.
  void Write(std::span<const StepRow> rows, const StepShape& shape);
  // The wishes that a device can answer, each of the row of `logits` (`stride` floats apart, in device memory) with its
  // number. `block` is the copy that they are read from. The others, by number: they are the host's to answer.
  std::vector<std::size_t> WriteDraws(std::span<const SampleWish> wishes, const float* logits, std::int64_t stride,
                                      const std::byte* block);
  std::int64_t draws() const { return draws_; }

  // All that was written.
  std::span<const std::byte> written() const { return pinned_->bytes().first(static_cast<std::size_t>(written_)); }
  std::int64_t block_bytes() const { return block_bytes_; }
  View In(const std::byte* block) const;

 private:
  explicit StepTables(const StepTableSizes& sizes);
  template <typename T>
  T* At(std::int64_t offset) {
    return reinterpret_cast<T*>(pinned_->bytes().data() + offset);
  }

  StepTableSizes sizes_;
  std::int64_t tokens_ = 0, positions_ = 0, first_page_ = 0, logit_rows_ = 0, sample_rows_ = 0, banned_ = 0;
  std::int64_t page_tables_ = 0, block_bytes_ = 0;  // offsets in the block; page tables come last
  std::int64_t written_ = 0;
  std::int64_t draws_ = 0;
  std::unique_ptr<DeviceBuffer> pinned_;
};

}  // namespace bascule
