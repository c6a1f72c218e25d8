#include "tests/support/fake_cuda/fake_device.h"

#include <cstdio>
#include <cstdlib>

#include "tests/support/fake_cuda/control.h"

namespace bascule {
Device& FakeDevice(int ordinal) {
  const Result<DeviceBackend*> backend = LoadCudaBackend();
  if (!backend.ok() || !FakeCuda::IsLoaded()) {
    std::fprintf(stderr, "not over the fake CUDA runtime (%s): run this test with ctest\n",
                 backend.status().ToString().c_str());
    std::exit(1);
  }
  return **(*backend)->Open(ordinal);
}

}  // namespace bascule
