// Devices that need a vendor's libraries come from a module that is opened when somebody asks for it, so that a program
// which never does pays nothing: it neither links those libraries nor finds them missing.
//
// The module is a build of the same headers. A module of another build is refused, since both sides of every virtual
// call must be the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace bascule {

// Thread-safety: thread-safe; lives until the program ends.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string_view name() const = 0;  // "cuda"

  // The devices that this process sees, by ordinal. A device is set up when it is first asked for, and stays.
  //
  // Unavailable "no_cuda_device"  there is none, or no driver, in the driver's words
  virtual Result<std::vector<DeviceDescription>> Devices() = 0;
  // NotFound "no_such_device"  with those that are there; "no_cuda_device"
  virtual Result<Device*> Open(const DeviceUuid& uuid) = 0;
  // As above, by its ordinal here.
  virtual Result<Device*> Open(int ordinal) = 0;

  // What a higher layer's header declares as its part of the module: the symbol bascule_cuda_PART, or null.
  virtual void* Part(const std::string& part) = 0;
};

// Before each function that the module shows: extern "C", named bascule_cuda_*.
#define BASCULE_MODULE_ENTRY extern "C" __attribute__((visibility("default")))

// What the module's entry function, bascule_cuda_backend, gives. The build id comes first and is all that a module of
// another build is asked.
struct BackendEntry {
  const char* build_id = nullptr;
  DeviceBackend* (*backend)() = nullptr;
};

// The headers and flags this was built from: "0.1.0 GNU-12.2.0 3f7a...".
std::string_view BackendBuildId();

// Opens libbascule_cuda.so, once: $BASCULE_CUDA_MODULE where that is set, else beside the program's own libraries, else
// wherever the dynamic linker looks.
//
// Unavailable "no_cuda_backend"  it is not there or cannot be opened: where it was looked for, and why
// FailedPrecondition "backend_mismatch"  it is of another build
Result<DeviceBackend*> LoadCudaBackend();

// The same of a given file, for tests.
Result<DeviceBackend*> LoadBackend(const std::vector<std::string>& candidates);

}  // namespace bascule
