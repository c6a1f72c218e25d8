// One pass over a box for everything that a reader wants of it: its bytes in order, converted, digested, copied.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>

#include "kernels/box.h"
#include "kernels/digest.h"
#include "kernels/pack.h"

namespace bascule::read_box_internal {

int ConvertedBytes(Conversion conversion, int item_bytes);

// The digest of the box as converted. Its bytes go to `payload`, compact and in row-major order, unless that is null.
TensorDigest ReadBox(const DigestKey& key, const BoxShape& shape, Conversion conversion, int item_bytes,
                     const std::byte* base, const BoxPlace& source, const BoxPlace& logical, std::byte* payload);

}  // namespace bascule::read_box_internal
