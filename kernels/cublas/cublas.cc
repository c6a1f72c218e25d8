#include "kernels/cublas/cublas.h"

#include <dlfcn.h>

#include "base/mutex.h"

namespace bascule {
namespace {

constexpr const char* kLibrary = "libcublas.so.13";

template <typename Function>
Status Find(void* library, const char* name, Function& found) {
  found = reinterpret_cast<Function>(dlsym(library, name));
  if (found != nullptr) return OkStatus();
  return Status::Unavailable("no_cublas", fmt::format("{} has no {}", kLibrary, name));
}

Result<Cublas> Open() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status::Unavailable("no_cublas", fmt::format("{}; it comes with CUDA 13 (LD_LIBRARY_PATH)", dlerror()));
  }
  Cublas cublas{};
  RETURN_IF_ERROR(Find(library, "cublasCreate_v2", cublas.create));
  RETURN_IF_ERROR(Find(library, "cublasDestroy_v2", cublas.destroy));
  RETURN_IF_ERROR(Find(library, "cublasSetStream_v2", cublas.set_stream));
  RETURN_IF_ERROR(Find(library, "cublasSetWorkspace_v2", cublas.set_workspace));
  RETURN_IF_ERROR(Find(library, "cublasGemmEx_64", cublas.gemm));
  RETURN_IF_ERROR(Find(library, "cublasGetStatusName", cublas.status_name));
  return cublas;
}

}  // namespace

Status Cublas::ToStatus(cublasStatus_t answer, std::string_view call, const DeviceDescription& device) const {
  if (answer == CUBLAS_STATUS_SUCCESS) return OkStatus();
  std::string message =
      fmt::format("device {} {}: {}: {}", device.ordinal, device.uuid.ToString(), call, status_name(answer));
  if (answer == CUBLAS_STATUS_ALLOC_FAILED) return Status::ResourceExhausted("device_memory", std::move(message));
  return Status::Internal("device_error", std::move(message));
}

Result<const Cublas*> LoadCublas() {
  static Mutex mu;
  static const Cublas* opened = nullptr;
  const MutexLock lock(mu);
  if (opened == nullptr) {
    ASSIGN_OR_RETURN(const Cublas found, Open());
    opened = new Cublas(found);
  }
  return opened;
}

}  // namespace bascule
