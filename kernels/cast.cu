// A thread converts sixteen bytes of results at a time, a grid apart; what is left at the end, or memory that is not
// aligned, an element at a time.
#include <algorithm>

#include "kernels/cast_device.h"
#include "kernels/cuda/piece.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

template <typename Source>
__device__ void Cast(const std::byte* from, std::byte* to, std::int64_t count) {
  constexpr int kConverted = sizeof(typename Source::Converted);
  constexpr int kPieceItems = kPieceBytes / kConverted;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) & 15) == 0;
  const std::int64_t pieces = aligned ? count / kPieceItems : 0;
  for (std::int64_t i = thread; i < pieces; i += threads) {
    StoreStreaming(Source::Load(from + i * kPieceItems * Source::kItemBytes), to + i * kPieceBytes);
  }
  for (std::int64_t i = pieces * kPieceItems + thread; i < count; i += threads) {
    *reinterpret_cast<typename Source::Converted*>(to + i * kConverted) =
        Source::LoadItem(from + i * Source::kItemBytes);
  }
}

__global__ void CastF32ToBf16(const std::byte* from, std::byte* to, std::int64_t count) {
  Cast<Narrowed>(from, to, count);
}
__global__ void CastBf16ToF32(const std::byte* from, std::byte* to, std::int64_t count) {
  Cast<Widened>(from, to, count);
}

}  // namespace kernel

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kThreadElements = 32;  // at least, unless there are fewer

std::int64_t Blocks(std::int64_t count) {
  return std::min<std::int64_t>((count + kThreads * kThreadElements - 1) / (kThreads * kThreadElements), 4096);
}

}  // namespace

Status CastF32ToBf16OnDevice(const std::byte* from, std::byte* to, std::int64_t count, StreamHandle stream) {
  return LaunchOn<kernel::CastF32ToBf16>(stream, "CastF32ToBf16", Blocks(count), kThreads, from, to, count);
}

Status CastBf16ToF32OnDevice(const std::byte* from, std::byte* to, std::int64_t count, StreamHandle stream) {
  return LaunchOn<kernel::CastBf16ToF32>(stream, "CastBf16ToF32", Blocks(count), kThreads, from, to, count);
}

}  // namespace bascule
