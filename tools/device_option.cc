#include "tools/device_option.h"

#include <charconv>
#include <string_view>

#include "device/backend.h"

namespace bascule {
namespace {

bool IsOrdinal(std::string_view name, int& ordinal) {
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) name.remove_prefix(kCuda.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  return error == std::errc() && end == name.data() + name.size() && ordinal >= 0;
}

}  // namespace

CLI::Option* AddDevice(CLI::App& app, std::string& target, const std::string& what) {
  return app.add_option("--device", target, what)->type_name("cuda:N|GPU-UUID")->check([](const std::string& text) {
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
