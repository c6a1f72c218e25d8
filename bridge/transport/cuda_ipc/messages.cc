#include "bridge/transport/cuda_ipc/messages.h"

#include "bridge/transport/shm/runtime_directory.h"

namespace bascule {

Result<RouteHello> FromCudaIpc(const CudaIpcHello& hello) {
  if (hello.magic != kCudaIpcMagic) {
    return Status::InvalidArgument("bad_route",
                                   fmt::format("cuda_ipc protocol {:#x} want {:#x}", hello.magic, kCudaIpcMagic));
  }
  return FromShm(hello.route);
}

std::string ToAddress(const CudaIpcAddress& address) {
  return fmt::format("{}:{}", address.device.ToString(), address.path);
}

Result<CudaIpcAddress> ParseCudaIpcAddress(const std::string& text) {
  CudaIpcAddress address;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return Status::InvalidArgument("bad_address", fmt::format("'{}'", text));
  ASSIGN_OR_RETURN(address.device, ParseDeviceUuid(text.substr(0, colon)));
  address.path = text.substr(colon + 1);
  RETURN_IF_ERROR(CheckSocketPath(address.path));
  return address;
}

}  // namespace bascule
