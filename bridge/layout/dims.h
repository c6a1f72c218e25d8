// Up to eight 64-bit numbers, one per dimension, without an allocation: shapes, offsets, strides.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/status.h"
#include "kernels/box.h"

namespace bascule {

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) {
    for (const std::int64_t value : values) push_back(value);
  }
  explicit Dims(std::span<const std::int64_t> values) {
    for (const std::int64_t value : values) push_back(value);
  }
  static Dims Zeros(int size) {
    Dims dims;
    for (int d = 0; d < size; ++d) dims.push_back(0);
    return dims;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int d) { return values_[static_cast<std::size_t>(d)]; }
  std::int64_t operator[](int d) const { return values_[static_cast<std::size_t>(d)]; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  operator std::span<const std::int64_t>() const { return {begin(), end()}; }  // NOLINT: implicit by design
  // At most kMaxDims; input is checked against that before it comes here.
  void push_back(std::int64_t value) {
    CHECK(size_ < kMaxDims);
    values_[static_cast<std::size_t>(size_++)] = value;
  }
  std::string ToString() const;  // "[48, 64]"

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
  friend auto operator<=>(const Dims& a, const Dims& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<std::int64_t, kMaxDims> values_{};
  int size_ = 0;
};

}  // namespace bascule
