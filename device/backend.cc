#include "device/backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/mutex.h"

namespace bascule {
namespace {

constexpr std::string_view kModule = "libbascule_cuda.so";
constexpr const char* kEntry = "bascule_cuda_backend";

std::vector<std::string> Candidates() {
  if (const char* const named = std::getenv("BASCULE_CUDA_MODULE"); named != nullptr) return {named};
  std::vector<std::string> candidates;
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  // Build and install trees alike: the folder of libraries lies beside that of programs.
  if (!failed) candidates.push_back((program.parent_path().parent_path() / BASCULE_LIBRARY_DIR / kModule).string());
  candidates.emplace_back(kModule);
  return candidates;
}

Result<DeviceBackend*> BackendOf(void* module, const std::string& path) {
  const auto entry = reinterpret_cast<const BackendEntry* (*)()>(dlsym(module, kEntry));
  if (entry == nullptr) {
    return Status::FailedPrecondition("backend_mismatch", fmt::format("{} is no module: it has no {}", path, kEntry));
  }
  const BackendEntry& found = *entry();
  if (found.build_id != BackendBuildId()) {
    return Status::FailedPrecondition(
        "backend_mismatch", fmt::format("{} is of another build: '{}', and this program of '{}'; install both together",
                                        path, found.build_id, BackendBuildId()));
  }
  return found.backend();
}

}  // namespace

Result<DeviceBackend*> LoadBackend(const std::vector<std::string>& candidates) {
  std::string tried;
  for (const std::string& path : candidates) {
    // Never closed: kernels registered with the driver and threads of its library outlive any owner.
    void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", dlerror());
      continue;
    }
    Result<DeviceBackend*> backend = BackendOf(module, path);
    if (!backend.ok()) dlclose(module);
    return backend;
  }
  return Status::Unavailable("no_cuda_backend",
                             fmt::format("{} was not opened ({}); build with BASCULE_CUDA=ON, or set "
                                         "BASCULE_CUDA_MODULE to its path",
                                         kModule, tried));
}

Result<DeviceBackend*> LoadCudaBackend() {
  static Mutex mu;
  static DeviceBackend* loaded = nullptr;
  const MutexLock lock(mu);
  if (loaded == nullptr) {
    ASSIGN_OR_RETURN(loaded, LoadBackend(Candidates()));
  }
  return loaded;
}

}  // namespace bascule
