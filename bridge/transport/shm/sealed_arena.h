// The arena of an shm route: a memfd that its maker can write and nobody can resize. The seals SHRINK and GROW mean
// that a mapping never faults beyond its end; FUTURE_WRITE, that the receiver's mapping cannot be made writable; SEAL,
// that this stays so. The maker still writes while the receiver reads: what counts is what the receiver has copied.
//
// The memory goes when the last descriptor and mapping do, also after kill -9: there is no name to clean up.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bridge/transport/frame_arena.h"

namespace bascule {

struct SealedArena {
  UniqueFd fd;  // to pass on; the frames do not need it
  FrameArena frames;
};

// Reserves the memory first, so that a shortage is an error here and not a signal later.
//
// ResourceExhausted "frame_memory"
Result<SealedArena> MakeSealedArena(std::int64_t frame_bytes, std::int32_t credits);

// Maps a peer's arena read-only, after it has been looked at.
//
// InvalidArgument "bad_arena"  the seals or the size are not as they should be; ResourceExhausted "frame_memory"
Result<FrameArena> MapSealedArena(const UniqueFd& fd, std::int64_t frame_bytes, std::int32_t credits);

}  // namespace bascule
