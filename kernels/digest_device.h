// digest.h on a device: the digests of many boxes by one launch.
//
// Thread-safety: thread-safe. Enqueues on `stream` and returns; what the batch points to stays as it is until `stream`
// passes this point. Errors of the device (device/device.h).
#pragma once

#include "base/status.h"
#include "device/stream.h"
#include "kernels/box_moves.h"

namespace bascule {

// Adds to digests[i] the digest of box i as it lies at the *source* of entry i, after conversion. Targets are not used.
Status DigestBoxesOnDevice(const MoveBatch& batch, StreamHandle stream);

}  // namespace bascule

// Roofline, per byte: as in digest.h. The word keys come from shared memory, 4 bytes for each byte digested: at 128
// bytes a cycle and 132 multiprocessors of 1.7 GHz that is 7 TB/s, above what the memory gives.
