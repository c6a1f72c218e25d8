#include "bridge/layout/canonical_encoding.h"
#include "bridge/layout/layout.h"

namespace bascule {
namespace {

void EncodeRank(const RankLayout& rank, CanonicalEncoding& encoding) {
  encoding.Number(rank.tensors.size());
  for (const LocalTensor& tensor : rank.tensors) {
    encoding.Tensor({tensor.name, tensor.dtype, tensor.shape});
    encoding.Numbers(tensor.stride);
  }
  encoding.Number(rank.rows.size());
  for (const MapRow& row : rank.rows) {
    encoding.Number(row.local);
    encoding.BoxOf(row.local_box);
    encoding.Number(row.logical);
    encoding.BoxOf(row.logical_box);
  }
}

}  // namespace

Hash256 LayoutDigest(const Layout& layout) {
  CanonicalEncoding encoding("bascule layout 1");
  encoding.Number(layout.tensors.size());
  for (const TensorSpec& tensor : layout.tensors) encoding.Tensor(tensor);
  encoding.Number(layout.ranks.size());
  for (const RankLayout& rank : layout.ranks) EncodeRank(rank, encoding);
  return encoding.Digest();
}

}  // namespace bascule
