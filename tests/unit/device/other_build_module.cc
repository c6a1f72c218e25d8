// A module that says it is of another build. Asking it for more would be the loader's mistake.
#include <cstdlib>

#include "device/backend.h"

BASCULE_MODULE_ENTRY const bascule::BackendEntry* bascule_cuda_backend();

const bascule::BackendEntry* bascule_cuda_backend() {
  static const bascule::BackendEntry entry = {"0.0.0 another build", []() -> bascule::DeviceBackend* { std::abort(); }};
  return &entry;
}
