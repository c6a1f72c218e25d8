// The digests of a version worked out from the formulas of kernels/digest.h and bridge/manifest/manifest.h, word by
// word over whole tensors: shares no code with what is tested but SHA-256.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "bridge/layout/layout.h"
#include "kernels/digest.h"

namespace bascule {

TensorDigest OracleDigest(const TensorSpec& tensor, std::span<const std::byte> bytes);
// `tensors` sorted by name, `bytes` in the same order.
Hash256 OracleVersionDigest(const std::vector<TensorSpec>& tensors, const std::vector<std::vector<std::byte>>& bytes);

}  // namespace bascule
