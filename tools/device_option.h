// --device, as several commands have it: which GPU of this machine.
//
// Thread-safety: confined to the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "device/device.h"

namespace bascule {

// `target` becomes an ordinal of this process ("cuda:0", or "0") or a UUID ("GPU-8932f937-...").
CLI::Option* AddDevice(CLI::App& app, std::string& target, const std::string& what);

// The device of that name. As LoadCudaBackend and DeviceBackend::Open.
Result<Device*> OpenDevice(const std::string& name);

}  // namespace bascule
