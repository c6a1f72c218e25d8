// The kernels of the CUDA module, compiled for the CPU and run by the emulator: what the fake runtime launches.
#include <map>

#include "base/mutex.h"
#include "base/status.h"
#include "tests/support/fake_cuda/kernel_table.h"
#include "tests/support/simt/emulator.h"

namespace bascule {
namespace {

void Run(const FakeKernel& kernel, const FakeLaunch& launch, void** arguments) {
  // The emulator knows grids of one dimension, as our kernels do.
  CHECK(launch.grid[1] == 1 && launch.grid[2] == 1 && launch.block[1] == 1 && launch.block[2] == 1);
  static_cast<const simt::Entry*>(kernel.own)->run(launch.grid[0], launch.block[0], arguments);
}

}  // namespace
}  // namespace bascule

extern "C" [[gnu::visibility("default")]] const bascule::FakeKernel* bascule_fake_kernel(const char* mangled_name) {
  static bascule::Mutex mu;
  static auto* const asked = new std::map<const bascule::simt::Entry*, bascule::FakeKernel>;
  const bascule::simt::Entry* const entry = bascule::simt::FindKernel(mangled_name);
  if (entry == nullptr) return nullptr;
  const bascule::MutexLock lock(mu);
  const auto& [place, is_new] = asked->try_emplace(
      entry, bascule::FakeKernel{entry->argument_bytes.data(), entry->argument_bytes.size(), &bascule::Run, entry});
  return &place->second;
}
