#include "kernels/pack.h"

#include <utility>

#include "base/status.h"
#include "kernels/box_runs_internal.h"
#include "kernels/copy_items_internal.h"
#include "kernels/run_reader_internal.h"

namespace bascule {
BoxPlace CompactPlace(const BoxShape& shape) {
  BoxPlace place;
  std::int64_t stride = 1;
  for (auto d = static_cast<std::size_t>(shape.dims); d > 0; --d) {
    place.stride[d - 1] = stride;
    stride *= shape.count[d - 1];
  }
  return place;
}

TensorDigest PackAndDigestOnHost(const DigestKey& key, const BoxShape& shape, Conversion conversion, int item_bytes,
                                 const std::byte* source_base, const BoxPlace& source, const BoxPlace& logical,
                                 std::span<std::byte> payload) {
  CHECK(std::cmp_equal(payload.size(), shape.Elements() * RunReader::ConvertedBytes(conversion, item_bytes)));
  const BoxRuns<2> runs(shape, {source, logical});
  RunReader reader(key, conversion, item_bytes, payload.data());
  runs.ForEach([&](const BoxRuns<2>::Offsets& first) {
    reader.Run(runs.run_elements(), source_base + first[0] * item_bytes, runs.run_stride(0), first[1],
               runs.run_stride(1));
  });
  return reader.Total();
}

void UnpackOnHost(const BoxShape& shape, int item_bytes, std::span<const std::byte> payload, std::byte* target_base,
                  const BoxPlace& target) {
  CHECK(std::cmp_equal(payload.size(), shape.Elements() * item_bytes));
  CopyBoxOnHost(shape, item_bytes, payload.data(), CompactPlace(shape), target_base, target);
}

TensorDigest UnpackAndDigestOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes,
                                   std::span<const std::byte> payload, std::byte* target_base, const BoxPlace& target,
                                   const BoxPlace& logical) {
  CHECK(std::cmp_equal(payload.size(), shape.Elements() * item_bytes));
  return CopyAndDigestBoxOnHost(key, shape, item_bytes, payload.data(), CompactPlace(shape), target_base, target,
                                logical);
}

TensorDigest CopyAndDigestBoxOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes,
                                    const std::byte* source_base, const BoxPlace& source, std::byte* target_base,
                                    const BoxPlace& target, const BoxPlace& logical) {
  const BoxRuns<3> runs(shape, {source, target, logical});
  const std::int64_t from_stride = runs.run_stride(0);
  const std::int64_t to_stride = runs.run_stride(1);
  RunReader reader(key, Conversion::kNone, item_bytes, nullptr);
  runs.ForEach([&](const BoxRuns<3>::Offsets& first) {
    const std::byte* const from = source_base + first[0] * item_bytes;
    std::byte* const to = target_base + first[1] * item_bytes;
    const auto place = [&](std::int64_t begin, std::int64_t count, std::byte* scratch) {
      copy_items_internal::PlaceItems(item_bytes, count, from + begin * from_stride * item_bytes, from_stride,
                                      to + begin * to_stride * item_bytes, to_stride, scratch);
      return scratch;
    };
    reader.Run(runs.run_elements(), first[2], runs.run_stride(2), place);
  });
  return reader.Total();
}

void CopyBoxOnHost(const BoxShape& shape, int item_bytes, const std::byte* source_base, const BoxPlace& source,
                   std::byte* target_base, const BoxPlace& target) {
  const BoxRuns<2> runs(shape, {source, target});
  runs.ForEach([&](const BoxRuns<2>::Offsets& first) {
    copy_items_internal::CopyItems(item_bytes, runs.run_elements(), source_base + first[0] * item_bytes,
                                   runs.run_stride(0), target_base + first[1] * item_bytes, runs.run_stride(1));
  });
}

void FillBoxOnHost(const BoxShape& shape, std::span<const std::byte> element, std::byte* target_base,
                   const BoxPlace& target) {
  const auto item_bytes = static_cast<std::int64_t>(element.size());
  const BoxRuns<1> runs(shape, {target});
  runs.ForEach([&](const BoxRuns<1>::Offsets& first) {
    // A source that does not move is a stride of zero.
    copy_items_internal::CopyItems(static_cast<int>(item_bytes), runs.run_elements(), element.data(), 0,
                                   target_base + first[0] * item_bytes, runs.run_stride(0));
  });
}

}  // namespace bascule
