#include "engine_side/decode/float_buffer.h"

#include <sys/mman.h>

#include "base/checked_math.h"

namespace bascule {

void FloatBuffer::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

Result<FloatBuffer> FloatBuffer::Allocate(std::int64_t count) {
  FloatBuffer buffer;
  if (count == 0) return buffer;
  const std::optional<std::int64_t> bytes = CheckedMul<std::int64_t>(count, sizeof(float));
  void* memory = MAP_FAILED;
  if (count > 0 && bytes) {
    memory =
        mmap(nullptr, static_cast<std::size_t>(*bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (memory == MAP_FAILED) return Status::ResourceExhausted("float_memory", fmt::format("floats={}", count));
  madvise(memory, static_cast<std::size_t>(*bytes), MADV_HUGEPAGE);  // advice: a refusal changes nothing
  buffer.memory_ = {static_cast<std::byte*>(memory), Unmap{static_cast<std::size_t>(*bytes)}};
  buffer.size_ = count;
  return buffer;
}

}  // namespace bascule
