// A module that says it is of another build. Asking it for more would be the loader's mistake.
#include <cstdlib>

#include "device/backend.h"

BASCULE_MODULE_ENTRY bascule::BackendEntry bascule_cuda_backend();

bascule::BackendEntry bascule_cuda_backend() {
  return {"0.0.0 another build", []() -> bascule::DeviceBackend* { std::abort(); }};
}
