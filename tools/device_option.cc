#include "tools/device_option.h"

#include <charconv>

#include "device/backend.h"

namespace bascule {
namespace {

bool IsOrdinal(const std::string& name, int& ordinal) {
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  return error == std::errc() && end == name.data() + name.size() && ordinal >= 0;
}

}  // namespace

CLI::Option* AddDevice(CLI::App& app, std::string& target, const std::string& what) {
  return app.add_option("--device", target, what)->type_name("N|GPU-UUID")->check([](const std::string& text) {
    int ordinal = 0;
    if (IsOrdinal(text, ordinal) || ParseDeviceUuid(text).ok()) return std::string();
    return "'" + text + "' is no ordinal and no UUID of a GPU (nvidia-smi -L)";
  });
}

Result<Device*> OpenDevice(const std::string& name) {
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  int ordinal = 0;
  if (IsOrdinal(name, ordinal)) return backend->Open(ordinal);
  ASSIGN_OR_RETURN(const DeviceUuid uuid, ParseDeviceUuid(name));
  return backend->Open(uuid);
}

}  // namespace bascule
