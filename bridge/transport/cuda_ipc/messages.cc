#include "bridge/transport/cuda_ipc/messages.h"

#include <algorithm>

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
  std::string devices;
  for (const DeviceUuid& device : address.devices) devices += (devices.empty() ? "" : "+") + device.ToString();
  return fmt::format("{}:{}", devices, address.path);
}

Result<CudaIpcAddress> ParseCudaIpcAddress(const std::string& text) {
  CudaIpcAddress address;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return Status::InvalidArgument("bad_address", fmt::format("'{}'", text));
  for (std::size_t begin = 0; begin <= colon;) {
    const std::size_t end = std::min(text.find('+', begin), colon);
    ASSIGN_OR_RETURN(const DeviceUuid device, ParseDeviceUuid(text.substr(begin, end - begin)));
    address.devices.push_back(device);
    begin = end + 1;
  }
  address.path = text.substr(colon + 1);
  RETURN_IF_ERROR(CheckSocketPath(address.path));
  return address;
}

}  // namespace bascule
