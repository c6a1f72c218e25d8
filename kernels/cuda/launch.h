// How a .cu file starts a kernel: on the stream that it was given, without waiting for anything.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "device/cuda/launch.h"
#include "device/stream.h"

namespace bascule {

// Enqueues `blocks` blocks of `threads` threads each; nothing when `blocks` is 0. Arguments are copied before this
// returns. Errors of the device, with `name`.
template <auto kKernel, typename... Arguments>
Status LaunchOn(StreamHandle stream, std::string_view name, std::int64_t blocks, int threads,
                const Arguments&... arguments) {
  if (blocks == 0) return OkStatus();
  const LaunchShape shape{.blocks = static_cast<std::uint32_t>(blocks), .threads = static_cast<std::uint32_t>(threads)};
  return Launch(kKernel, shape, stream, name, arguments...);
}

}  // namespace bascule
