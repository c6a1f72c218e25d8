#include "bridge/layout/canonical_encoding.h"

#include <array>

namespace bascule {
namespace {

constexpr std::size_t kPendingMax = 16 << 10;  // stays in the nearest cache

}  // namespace

void CanonicalEncoding::HashPending() {
  hash_.Add(std::string_view(pending_));
  pending_.clear();
}

Hash256 CanonicalEncoding::Digest() {
  HashPending();
  return hash_.Finish();
}

void CanonicalEncoding::AppendNumber(std::uint64_t number) {
  std::array<char, 8> little_endian;
  for (std::size_t i = 0; i < little_endian.size(); ++i) little_endian[i] = static_cast<char>(number >> (8 * i) & 0xff);
  pending_.append(little_endian.data(), little_endian.size());
  if (pending_.size() >= kPendingMax) HashPending();
}

void CanonicalEncoding::Text(std::string_view text) {
  Number(text.size());
  pending_ += text;
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
