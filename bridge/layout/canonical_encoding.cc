#include "bridge/layout/canonical_encoding.h"

#include <array>

namespace bascule {

void CanonicalEncoding::AppendNumber(std::uint64_t number) {
  std::array<char, 8> little_endian;
  for (std::size_t i = 0; i < little_endian.size(); ++i) little_endian[i] = static_cast<char>(number >> (8 * i) & 0xff);
  bytes_.append(little_endian.data(), little_endian.size());
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
