#include "trainer_side/weight_guard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/cast.h"

namespace bascule {
namespace {

// Magnitudes of a float format, as the bits below the sign: they have the order of the numbers, and infinities and NaNs
// come last.
struct MagnitudeBits {
  std::uint32_t mask = 0;
  std::uint32_t infinity = 0;
  double (*value)(std::uint32_t bits) = nullptr;
};

double ValueOfF16(std::uint32_t bits) {
  const auto exponent = static_cast<int>(bits >> 10);
  const auto fraction = static_cast<double>(bits & 0x3ffu);
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25);
}

std::optional<MagnitudeBits> BitsOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return MagnitudeBits{0x7fff, 0x7f80, [](std::uint32_t bits) {
                             return double{std::bit_cast<float>(F32BitsOfBf16Bits(static_cast<std::uint16_t>(bits)))};
                           }};
    case DType::kF16:
      return MagnitudeBits{0x7fff, 0x7c00, ValueOfF16};
    case DType::kF32:
      return MagnitudeBits{0x7fffffff, 0x7f800000,
                           [](std::uint32_t bits) { return double{std::bit_cast<float>(bits)}; }};
    default:
      return std::nullopt;
  }
}

template <typename Word>
std::uint32_t LargestOfRun(const std::byte* base, std::int64_t count, std::int64_t stride, std::uint32_t mask) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, base + i * stride * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
    largest = std::max(largest, word & mask);
  }
  return largest;
}

// The largest magnitude in the box: its rows one after another.
std::uint32_t LargestOf(const BoxView& view, const BoxShape& shape, int item_bytes, std::uint32_t mask) {
  const int inner = shape.dims - 1;
  const std::int64_t run = shape.dims == 0 ? 1 : shape.count[static_cast<std::size_t>(inner)];
  const std::int64_t stride = shape.dims == 0 ? 1 : view.place.stride[static_cast<std::size_t>(inner)];
  const std::int64_t runs = run == 0 ? 0 : shape.Elements() / run;
  std::uint32_t largest = 0;
  for (std::int64_t r = 0; r < runs; ++r) {
    std::int64_t offset = view.place.offset;
    std::int64_t rest = r;
    for (int d = inner - 1; d >= 0; --d) {
      const auto dim = static_cast<std::size_t>(d);
      offset += (rest % shape.count[dim]) * view.place.stride[dim];
      rest /= shape.count[dim];
    }
    const std::byte* base = view.base + offset * item_bytes;
    largest = std::max(largest, item_bytes == 2 ? LargestOfRun<std::uint16_t>(base, run, stride, mask)
                                                : LargestOfRun<std::uint32_t>(base, run, stride, mask));
  }
  return largest;
}

Status CheckLargest(const TensorSpec& tensor, std::uint32_t largest, const MagnitudeBits& bits,
                    const WeightGuard& guard) {
  if (largest >= bits.infinity) {
    return Status::DataLoss("weights_not_finite", fmt::format("tensor {} has {}", tensor.name,
                                                              largest == bits.infinity ? "an infinity" : "a NaN"));
  }
  const double magnitude = bits.value(largest);
  if (guard.max_magnitude == 0 || magnitude <= guard.max_magnitude) return OkStatus();
  return Status::DataLoss("weights_too_large", fmt::format("tensor {} has a weight of {:g}, at most {:g} may be",
                                                           tensor.name, magnitude, guard.max_magnitude));
}

// A row of a rank's map whose elements are floats.
struct Part {
  const TensorSpec* tensor = nullptr;
  MagnitudeBits bits;
  SourceBox box;
};

std::vector<Part> PartsOf(const WeightSource& source, int rank) {
  const Layout& layout = source.layout();
  const RankLayout& held = layout.ranks[static_cast<std::size_t>(rank)];
  std::vector<Part> parts;
  for (const MapRow& row : held.rows) {
    const LocalTensor& local = held.tensors[static_cast<std::size_t>(row.local)];
    const auto bits = BitsOf(local.dtype);
    if (row.logical == kFill || !bits) continue;
    const BoxPlace place =
        local.stride.empty() ? PlaceIn(row.local_box, local.shape) : PlaceInStrided(row.local_box, local.stride);
    parts.push_back({&layout.tensors[static_cast<std::size_t>(row.logical)],
                     *bits,
                     {source.Base(rank, row.local), ItemBytes(local.dtype), ShapeOf(row.local_box), place}});
  }
  return parts;
}

}  // namespace

Status CheckWeights(const WeightSource& source, const WeightGuard& guard) {
  for (std::size_t rank = 0; rank < source.layout().ranks.size(); ++rank) {
    if (!source.Holds(static_cast<int>(rank))) continue;
    const std::vector<Part> parts = PartsOf(source, static_cast<int>(rank));
    std::vector<SourceBox> boxes;
    for (const Part& part : parts) boxes.push_back(part.box);
    const std::unique_ptr<BoxReader> reader = source.Read(std::move(boxes));
    for (const Part& part : parts) {
      ASSIGN_OR_RETURN(const BoxView view, reader->Next());
      const std::uint32_t largest = LargestOf(view, part.box.shape, part.box.item_bytes, part.bits.mask);
      RETURN_IF_ERROR(CheckLargest(*part.tensor, largest, part.bits, guard));
    }
  }
  return OkStatus();
}

}  // namespace bascule
