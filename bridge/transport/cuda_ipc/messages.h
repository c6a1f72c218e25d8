// What the two ends of a cuda_ipc route say over their socket: the words of an shm route (shm/messages.h), and in the
// hello and its answer what each end has on the device. One message each, so nobody waits for a second one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/transport/cuda_ipc/device_end.h"
#include "bridge/transport/shm/messages.h"

namespace bascule {

inline constexpr std::uint64_t kCudaIpcMagic = 0x63706963'00000001;  // "cipc", version 1

// Sender -> listener, with the sealed memfd of the frames' host parts.
struct CudaIpcHello {
  std::uint64_t magic = kCudaIpcMagic;
  ShmHello route;
  DeviceEndName sender;
};

// Listener -> sender.
struct CudaIpcReply {
  ShmReply verdict;
  DeviceEndName receiver;  // where the verdict is kOk
};

// InvalidArgument "bad_route"
Result<RouteHello> FromCudaIpc(const CudaIpcHello& hello);

// An endpoint's address: the devices of the engine ranks, each once, and where to call. A sender on none of them has
// no business there.
struct CudaIpcAddress {
  std::vector<DeviceUuid> devices;
  std::string path;
};
std::string ToAddress(const CudaIpcAddress& address);  // "GPU-8932f937-...+GPU-7a01...:/run/user/0/bascule/engine.sock"
// InvalidArgument "bad_address"
Result<CudaIpcAddress> ParseCudaIpcAddress(const std::string& text);

}  // namespace bascule
