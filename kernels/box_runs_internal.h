// A box as runs: neighbouring dimensions that every place walks without a jump become one, so that a whole tensor is
// a single run whatever its shape.
//
// Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/box.h"

namespace bascule {

template <std::size_t kPlaces>
class BoxRuns {
 public:
  using Offsets = std::array<std::int64_t, kPlaces>;  // in elements, one per place

  BoxRuns(const BoxShape& shape, const std::array<BoxPlace, kPlaces>& places) {
    for (std::size_t p = 0; p < kPlaces; ++p) first_[p] = places[p].offset;
    for (std::size_t d = 0; d < static_cast<std::size_t>(shape.dims); ++d) {
      Offsets stride;
      for (std::size_t p = 0; p < kPlaces; ++p) stride[p] = places[p].stride[d];
      AddDim(shape.count[d], stride);
    }
    if (dims_ > 0) {
      --dims_;
      run_elements_ = count_[dims_];
      run_stride_ = stride_[dims_];
    }
  }

  // Every run is this long, and its elements are this far apart in each place.
  std::int64_t run_elements() const { return run_elements_; }
  std::int64_t run_stride(std::size_t place) const { return run_stride_[place]; }

  // What is around the runs: no runs at all, or one for each index into the outer dimensions.
  bool empty() const { return empty_; }
  std::size_t outer_dims() const { return dims_; }
  std::int64_t outer_count(std::size_t dim) const { return count_[dim]; }
  std::int64_t outer_stride(std::size_t dim, std::size_t place) const { return stride_[dim][place]; }
  std::int64_t first(std::size_t place) const { return first_[place]; }

  // Calls visit(offsets of the run's first element) for each run, in row-major order of the shape.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    if (empty_) return;
    Offsets at = first_;
    std::array<std::int64_t, kMaxDims> index{};
    for (;;) {
      visit(at);
      std::size_t d = dims_;
      for (; d > 0 && ++index[d - 1] == count_[d - 1]; --d) {
        index[d - 1] = 0;
        for (std::size_t p = 0; p < kPlaces; ++p) at[p] -= stride_[d - 1][p] * (count_[d - 1] - 1);
      }
      if (d == 0) return;
      for (std::size_t p = 0; p < kPlaces; ++p) at[p] += stride_[d - 1][p];
    }
  }

 private:
  void AddDim(std::int64_t count, const Offsets& stride) {
    if (count == 0) empty_ = true;
    if (count == 1) return;
    if (dims_ > 0 && Continues(count, stride)) {
      count_[dims_ - 1] *= count;
      stride_[dims_ - 1] = stride;
      return;
    }
    count_[dims_] = count;
    stride_[dims_] = stride;
    ++dims_;
  }
  // True when one step of the dimension before is `count` steps of `stride` in every place.
  bool Continues(std::int64_t count, const Offsets& stride) const {
    for (std::size_t p = 0; p < kPlaces; ++p) {
      if (stride_[dims_ - 1][p] != stride[p] * count) return false;
    }
    return true;
  }
  static constexpr Offsets Ones() {
    Offsets ones;
    ones.fill(1);
    return ones;
  }

  bool empty_ = false;
  std::size_t dims_ = 0;  // outer ones, once the constructor has set the run apart
  Offsets first_;
  std::array<std::int64_t, kMaxDims> count_{};
  std::array<Offsets, kMaxDims> stride_{};
  std::int64_t run_elements_ = 1;
  Offsets run_stride_ = Ones();
};

}  // namespace bascule
