// pack.h on a device: pack, unpack, copy and fill are one kernel over a table of boxes. A payload is a memory in which
// every box has its compact place (CompactPlace).
//
// Thread-safety: thread-safe. Every function enqueues on `stream` and returns; what the batch points to stays as it is
// until `stream` passes this point. Errors of the device (device/device.h).
#pragma once

#include "base/status.h"
#include "device/stream.h"
#include "kernels/box_moves.h"

namespace bascule {

// Copies (converts, or fills) every box of the batch. Boxes do not overlap in their target, nor any source with any
// target.
Status MoveBoxesOnDevice(const MoveBatch& batch, StreamHandle stream);

// The same, and adds to digests[i] the digest of what was written for entry i, after conversion. Each source byte is
// loaded once, and what was loaded is both stored and digested.
Status MoveAndDigestBoxesOnDevice(const MoveBatch& batch, StreamHandle stream);

}  // namespace bascule

// Roofline, per element: read once and written once (in its converted size); a fill only writes. Elements that lie
// apart, or whose bytes and logical positions differ modulo 16, take an access each.
