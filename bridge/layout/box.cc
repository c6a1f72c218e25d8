#include "bridge/layout/box.h"

#include <fmt/format.h>

#include <algorithm>

namespace bascule {
namespace {

// Elements of one index of dimension `d`: the product of the dimensions behind it.
std::int64_t InnerElements(const Dims& shape, int d) {
  std::int64_t product = 1;
  for (int i = d + 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

// Appends the range [begin, end) of `within`, whose dimensions before `d` have extent 1.
void AppendRange(const Box& within, int d, std::int64_t begin, std::int64_t end, std::vector<Box>& boxes) {
  if (begin == end) return;
  if (d == within.dims()) {
    boxes.push_back(within);
    return;
  }
  const std::int64_t inner = InnerElements(within.extent, d);
  const auto part = [&](std::int64_t first, std::int64_t count) {
    Box box = within;
    box.offset[d] += first;
    box.extent[d] = count;
    return box;
  };
  const std::int64_t head = begin / inner;
  if (begin % inner != 0) {
    const std::int64_t head_end = std::min(end, (head + 1) * inner);
    AppendRange(part(head, 1), d + 1, begin - head * inner, head_end - head * inner, boxes);
    begin = head_end;
  }
  if (begin == end) return;
  const std::int64_t first = begin / inner;
  const std::int64_t last = end / inner;
  if (last > first) boxes.push_back(part(first, last - first));
  AppendRange(part(last, 1), d + 1, 0, end - last * inner, boxes);
}

void AppendCut(const Box& box, int d, std::int64_t elements_max, std::vector<Box>& boxes) {
  if (box.Elements() <= elements_max) {
    boxes.push_back(box);
    return;
  }
  const std::int64_t step = std::max<std::int64_t>(1, elements_max / InnerElements(box.extent, d));
  for (std::int64_t first = 0; first < box.extent[d]; first += step) {
    Box part = box;
    part.offset[d] += first;
    part.extent[d] = std::min(step, box.extent[d] - first);
    AppendCut(part, d + 1, elements_max, boxes);
  }
}

}  // namespace

std::int64_t Box::Elements() const {
  std::int64_t product = 1;
  for (const std::int64_t count : extent) product *= count;
  return product;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int d = 0; d < dims(); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", offset[d], offset[d] + extent[d]);
  }
  return text + "]";
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  if (a.dims() != b.dims()) return std::nullopt;
  Box common = a;
  for (int d = 0; d < a.dims(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    common.offset[d] = begin;
    common.extent[d] = end - begin;
  }
  return common;
}

bool Contains(const Box& outer, const Box& inner) {
  if (outer.dims() != inner.dims()) return false;
  for (int d = 0; d < outer.dims(); ++d) {
    if (inner.offset[d] < outer.offset[d]) return false;
    if (inner.offset[d] + inner.extent[d] > outer.offset[d] + outer.extent[d]) return false;
  }
  return true;
}

bool FitsIn(const Box& box, const Dims& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  bool empty = false;
  for (int d = 0; d < shape.size(); ++d) {
    if (box.extent[d] < 0 || box.extent[d] > shape[d]) return false;
    empty = empty || box.extent[d] == 0;
  }
  for (int d = 0; d < shape.size() && !empty; ++d) {
    if (box.offset[d] < 0 || box.offset[d] > shape[d] - box.extent[d]) return false;
  }
  return true;
}

bool SameElements(const Box& a, const Box& b) {
  if (a.Empty() || b.Empty()) return a.Empty() && b.Empty();
  const auto without_units = [](const Box& box) {
    Dims extent;
    for (const std::int64_t count : box.extent) {
      if (count != 1) extent.push_back(count);
    }
    return extent;
  };
  return without_units(a) == without_units(b);
}

Box CorrespondingBox(const Box& part, const Box& from, const Box& to) {
  Box result = to;
  int f = 0;
  for (int t = 0; t < to.dims(); ++t) {
    if (to.extent[t] == 1) continue;
    while (from.extent[f] == 1) ++f;
    result.offset[t] += part.offset[f] - from.offset[f];
    result.extent[t] = part.extent[f];
    ++f;
  }
  return result;
}

BoxShape ShapeOf(const Box& box) {
  BoxShape shape;
  for (const std::int64_t count : box.extent) {
    if (count != 1) shape.count[static_cast<std::size_t>(shape.dims++)] = count;
  }
  return shape;
}

BoxPlace PlaceIn(const Box& box, const Dims& shape) { return PlaceInStrided(box, RowMajorStride(shape)); }

BoxPlace PlaceInStrided(const Box& box, const Dims& stride) {
  BoxPlace place;
  if (box.Empty()) return place;
  std::size_t kept = 0;
  for (int d = 0; d < box.dims(); ++d) {
    place.offset += box.offset[d] * stride[d];
    if (box.extent[d] != 1) place.stride[kept++] = stride[d];
  }
  return place;
}

Dims RowMajorStride(const Dims& shape) {
  Dims stride = Dims::Zeros(shape.size());
  std::int64_t step = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    stride[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return stride;
}

std::vector<Box> BoxesOfRange(const Dims& shape, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  AppendRange(Box::Whole(shape), 0, begin, end, boxes);
  return boxes;
}

std::vector<Box> CutBox(const Box& box, std::int64_t elements_max) {
  CHECK(elements_max > 0);
  std::vector<Box> boxes;
  if (!box.Empty()) AppendCut(box, 0, elements_max, boxes);
  return boxes;
}

}  // namespace bascule
