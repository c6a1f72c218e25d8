// How .cu files launch kernels: a function call, without <<<>>>, so that a C++ compiler can read the same file.
//
//   return Launch(&PackKernel, {.blocks = n, .threads = kBlockThreads}, stream, "PackKernel", slices, target);
//
// Thread-safety: thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "device/stream.h"

namespace bascule {

struct LaunchShape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 1;
  std::uint32_t shared_bytes = 0;
  std::uint32_t blocks_y = 1;
};

// Enqueues `kernel`. The arguments are copied before this returns. Errors of the device, with `name`.
Status LaunchKernel(const void* kernel, const LaunchShape& shape, StreamHandle stream, std::string_view name,
                    void** arguments);

template <typename... Parameters, typename... Arguments>
Status Launch(void (*kernel)(Parameters...), const LaunchShape& shape, StreamHandle stream, std::string_view name,
              const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  // Each argument becomes exactly what its parameter is: the runtime copies by the parameter's size.
  return [&](Parameters... converted) {
    std::array<void*, sizeof...(Parameters) + 1> addresses{
        const_cast<void*>(static_cast<const volatile void*>(&converted))..., nullptr};
    return LaunchKernel(reinterpret_cast<const void*>(kernel), shape, stream, name, addresses.data());
  }(arguments...);
}

}  // namespace bascule
