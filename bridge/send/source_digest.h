// The layout-independent digests of what a source holds, without sending it: what `digest` and `verify` print.
//
// Thread-safety: thread-safe (pure functions on the source's memory).
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/send/weight_source.h"
#include "kernels/digest.h"

namespace bascule {

// The digest of each of `wire_tensors`, in their order, after conversion to its type there. Every element is read once,
// by `threads` threads (0: one per core); replicas are not compared. Tensors that the source has besides take no part.
//
// InvalidArgument, FailedPrecondition  as MakePlan, with the wire tensors as the engine's; as BoxReader::Next
Result<std::vector<TensorDigest>> DigestSource(const WeightSource& source, const std::vector<TensorSpec>& wire_tensors,
                                               int threads);

}  // namespace bascule
