#include <cstring>
#include <utility>

#include "base/status.h"
#include "kernels/box_runs_internal.h"
#include "kernels/pack.h"
#include "kernels/read_box_internal.h"
#include "kernels/strided_internal.h"

namespace bascule {
namespace {

BoxPlace CompactPlace(const BoxShape& shape) {
  BoxPlace place;
  std::int64_t stride = 1;
  for (auto d = static_cast<std::size_t>(shape.dims); d > 0; --d) {
    place.stride[d - 1] = stride;
    stride *= shape.count[d - 1];
  }
  return place;
}

}  // namespace

TensorDigest PackAndDigestOnHost(const DigestKey& key, const BoxShape& shape, Conversion conversion, int item_bytes,
                                 const std::byte* source_base, const BoxPlace& source, const BoxPlace& logical,
                                 std::span<std::byte> payload) {
  const std::int64_t wire_bytes = read_box_internal::ConvertedBytes(conversion, item_bytes);
  CHECK(std::cmp_equal(payload.size(), shape.Elements() * wire_bytes));
  return read_box_internal::ReadBox(key, shape, conversion, item_bytes, source_base, source, logical, payload.data());
}

void UnpackOnHost(const BoxShape& shape, int item_bytes, std::span<const std::byte> payload, std::byte* target_base,
                  const BoxPlace& target) {
  CHECK(std::cmp_equal(payload.size(), shape.Elements() * item_bytes));
  CopyBoxOnHost(shape, item_bytes, payload.data(), CompactPlace(shape), target_base, target);
}

void CopyBoxOnHost(const BoxShape& shape, int item_bytes, const std::byte* source_base, const BoxPlace& source,
                   std::byte* target_base, const BoxPlace& target) {
  const BoxRuns<2> runs(shape, {source, target});
  runs.ForEach([&](const BoxRuns<2>::Offsets& first) {
    strided_internal::CopyItems(item_bytes, runs.run_elements(), source_base + first[0] * item_bytes,
                                runs.run_stride(0), target_base + first[1] * item_bytes, runs.run_stride(1));
  });
}

void FillBoxOnHost(const BoxShape& shape, std::span<const std::byte> element, std::byte* target_base,
                   const BoxPlace& target) {
  const auto item_bytes = static_cast<std::int64_t>(element.size());
  const BoxRuns<1> runs(shape, {target});
  runs.ForEach([&](const BoxRuns<1>::Offsets& first) {
    // A source that does not move is a stride of zero.
    strided_internal::CopyItems(static_cast<int>(item_bytes), runs.run_elements(), element.data(), 0,
                                target_base + first[0] * item_bytes, runs.run_stride(0));
  });
}

}  // namespace bascule
