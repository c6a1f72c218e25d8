#include "tests/support/fake_cuda/control.h"

#include <dlfcn.h>

#include "base/status.h"

namespace bascule {
namespace {

void* Find(const char* name) {
  void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  if (runtime == nullptr) return nullptr;
  void* const symbol = dlsym(runtime, name);
  dlclose(runtime);
  return symbol;
}

template <typename Function>
Function Need(const char* name) {
  void* const symbol = Find(name);
  CHECK(symbol != nullptr);
  return reinterpret_cast<Function>(symbol);
}

}  // namespace

bool FakeCuda::IsLoaded() { return Find("bascule_fake_cuda_census") != nullptr; }

FakeCudaCensus FakeCuda::Census() {
  FakeCudaCensus census;
  Need<void (*)(FakeCudaCensus*)>("bascule_fake_cuda_census")(&census);
  return census;
}

void FakeCuda::SetSeed(std::uint64_t seed) { Need<void (*)(std::uint64_t)>("bascule_fake_cuda_seed")(seed); }

void FakeCuda::Fail(const char* function, int nth, int error) {
  Need<void (*)(const char*, int, int)>("bascule_fake_cuda_fail")(function, nth, error);
}

void FakeCuda::ForgetSetUp() { Need<void (*)()>("bascule_fake_cuda_forget_set_up")(); }

int FakeCuda::TakeBackFaults() { return Need<int (*)()>("bascule_fake_cuda_take_back_faults")(); }

}  // namespace bascule
