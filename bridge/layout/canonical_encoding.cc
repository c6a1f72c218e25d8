#include "bridge/layout/canonical_encoding.h"

namespace bascule {

void CanonicalEncoding::AppendNumber(std::uint64_t number) {
  for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(number >> (8 * i) & 0xff);
}

void CanonicalEncoding::Text(std::string_view text) {
  Number(text.size());
  bytes_ += text;
}

void CanonicalEncoding::Numbers(const Dims& dims) {
  Number(dims.size());
  for (const std::int64_t number : dims) Number(number);
}

void CanonicalEncoding::BoxOf(const Box& box) {
  Numbers(box.offset);
  Numbers(box.extent);
}

void CanonicalEncoding::Tensor(const TensorSpec& tensor) {
  Text(tensor.name);
  Text(DTypeName(tensor.dtype));
  Numbers(tensor.shape);
}

}  // namespace bascule
