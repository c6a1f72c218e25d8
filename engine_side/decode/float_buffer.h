// Floats at a 64-byte boundary, zero at first; pages of memory are taken from the system when first touched.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace bascule {

class FloatBuffer {
 public:
  FloatBuffer() = default;
  // ResourceExhausted "float_memory"  with the number that was asked for
  static Result<FloatBuffer> Allocate(std::int64_t count);

  float* data() { return reinterpret_cast<float*>(memory_.get()); }
  const float* data() const { return reinterpret_cast<const float*>(memory_.get()); }
  std::int64_t size() const { return size_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Unmap> memory_;
  std::int64_t size_ = 0;
};

}  // namespace bascule
