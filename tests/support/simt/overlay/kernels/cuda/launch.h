// kernels/cuda/launch.h over the emulator: found first on the include path of those who compile the kernels with g++.
// The stream is not looked at: a launch has run when it returns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "device/stream.h"
#include "tests/support/simt/dialect.h"

namespace bascule {
namespace simt {

// "bascule::kernel::Cast" of "... [with auto kKernel = bascule::kernel::Cast; ...]".
template <auto kKernel>
constexpr std::string_view KernelName() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("kKernel = ") + 10);
  return name.substr(0, name.find_first_of(";]"));
}

template <auto kKernel, typename Parameters>
struct Caller;
template <auto kKernel, typename... P>
struct Caller<kKernel, void (*)(P...)> {
  using Arguments = std::tuple<P...>;
  static constexpr std::array<std::size_t, sizeof...(P)> kArgumentBytes = {sizeof(P)...};
  static void Run(std::uint64_t blocks, unsigned threads, Arguments arguments) {
    RunGrid(
        blocks, threads, [](void* context) { std::apply(kKernel, *static_cast<const Arguments*>(context)); },
        &arguments);
  }
  static void RunPointers(std::uint64_t blocks, unsigned threads, void** pointers) {
    [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
      Run(blocks, threads, Arguments(*static_cast<P*>(pointers[kIndex])...));
    }
    (std::index_sequence_for<P...>());
  }
};

// A kernel that any code launches is in the table before main() begins.
template <auto kKernel>
inline const bool registered = RegisterKernel(KernelName<kKernel>(),
                                              {.run = &Caller<kKernel, decltype(kKernel)>::RunPointers,
                                               .argument_bytes = Caller<kKernel, decltype(kKernel)>::kArgumentBytes});

}  // namespace simt

template <auto kKernel, typename... Arguments>
Status LaunchOn(StreamHandle, std::string_view, std::int64_t blocks, int threads, const Arguments&... arguments) {
  CHECK(simt::registered<kKernel>);
  simt::Caller<kKernel, decltype(kKernel)>::Run(static_cast<std::uint64_t>(blocks), static_cast<unsigned>(threads),
                                                {arguments...});
  return OkStatus();
}

}  // namespace bascule
