#include "tests/support/fake_nccl/control.h"

#include <dlfcn.h>

#include "base/status.h"

namespace bascule {
namespace {

template <typename Function>
Function Need(const char* name) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  CHECK(library != nullptr);
  void* const symbol = dlsym(library, name);
  dlclose(library);
  CHECK(symbol != nullptr);
  return reinterpret_cast<Function>(symbol);
}

}  // namespace

FakeNcclCensus FakeNccl::Census() {
  FakeNcclCensus census;
  Need<void (*)(FakeNcclCensus*)>("bascule_fake_nccl_census")(&census);
  return census;
}

void FakeNccl::SetSeed(std::uint64_t seed) { Need<void (*)(std::uint64_t)>("bascule_fake_nccl_seed")(seed); }

void FakeNccl::Fail(const char* function, int nth, int error) {
  Need<void (*)(const char*, int, int)>("bascule_fake_nccl_fail")(function, nth, error);
}

}  // namespace bascule
