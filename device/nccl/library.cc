#include "device/nccl/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/mutex.h"

namespace bascule {
namespace {

// The first with ncclCommRegister. What came later is not used.
constexpr int kOldestVersion = NCCL_VERSION(2, 19, 1);

Status NotOpened(const std::string& path, const std::string& why) {
  return Status::Unavailable(
      "no_nccl", fmt::format("{} was not opened ({}); install NCCL {} or newer where the dynamic linker looks, or set "
                             "BASCULE_NCCL to its path",
                             path, why, NcclVersionText(kOldestVersion)));
}

template <typename Function>
void Find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) missing += fmt::format("{}{}", missing.empty() ? "it has no " : ", ", name);
}

std::string FindAll(void* library, NcclLibrary& nccl) {
  std::string missing;
  Find(library, "ncclGetUniqueId", nccl.get_unique_id, missing);
  Find(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config, missing);
  Find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error, missing);
  Find(library, "ncclCommFinalize", nccl.comm_finalize, missing);
  Find(library, "ncclCommDestroy", nccl.comm_destroy, missing);
  Find(library, "ncclCommAbort", nccl.comm_abort, missing);
  Find(library, "ncclCommRegister", nccl.comm_register, missing);
  Find(library, "ncclCommDeregister", nccl.comm_deregister, missing);
  Find(library, "ncclGroupStart", nccl.group_start, missing);
  Find(library, "ncclGroupEnd", nccl.group_end, missing);
  Find(library, "ncclSend", nccl.send, missing);
  Find(library, "ncclRecv", nccl.recv, missing);
  Find(library, "ncclBroadcast", nccl.broadcast, missing);
  Find(library, "ncclAllReduce", nccl.all_reduce, missing);
  Find(library, "ncclGetErrorString", nccl.get_error_string, missing);
  Find(library, "ncclGetLastError", nccl.get_last_error, missing);
  return missing;
}

Result<NcclLibrary> Open() {
  const char* const named = std::getenv("BASCULE_NCCL");
  NcclLibrary nccl{.path = named == nullptr ? "libnccl.so.2" : named};
  // Never closed: its threads outlive any owner.
  void* const library = dlopen(nccl.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotOpened(nccl.path, dlerror());
  std::string missing;
  Find(library, "ncclGetVersion", nccl.get_version, missing);
  if (!missing.empty() || nccl.get_version(&nccl.version) != ncclSuccess) {
    return NotOpened(nccl.path, "it does not tell its version");
  }
  if (nccl.version < kOldestVersion) {
    return Status::FailedPrecondition("nccl_too_old",
                                      fmt::format("{} is NCCL {}, and {} or newer is needed", nccl.path,
                                                  NcclVersionText(nccl.version), NcclVersionText(kOldestVersion)));
  }
  missing = FindAll(library, nccl);
  if (!missing.empty()) return NotOpened(nccl.path, missing);
  return nccl;
}

}  // namespace

std::string NcclVersionText(int version) {
  // Versions up to 2.8 count in hundreds.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  return fmt::format("{}.{}.{}", major, version < 10000 ? version / 100 % 10 : version / 100 % 100, version % 100);
}

Status NcclLibrary::ToStatus(ncclResult_t result, std::string_view call, ncclComm_t communicator) const {
  if (result == ncclSuccess || result == ncclInProgress) return OkStatus();
  const char* const last = get_last_error(communicator);
  std::string message = fmt::format("{}: {} ({})", call, get_error_string(result), last == nullptr ? "" : last);
  switch (result) {
    case ncclRemoteError:
      return Status::Unavailable("nccl_remote_error", std::move(message));
    case ncclSystemError:
      return Status::Unavailable("nccl_system_error", std::move(message));
    case ncclUnhandledCudaError:
      return Status::Internal("nccl_cuda_error", std::move(message));
    case ncclInvalidUsage:
    case ncclInvalidArgument:
      return Status::FailedPrecondition("nccl_invalid_usage", std::move(message));
    default:
      return Status::Internal("nccl_error", std::move(message));
  }
}

Result<const NcclLibrary*> LoadNccl() {
  static Mutex mu;
  static const NcclLibrary* loaded = nullptr;
  const MutexLock lock(mu);
  if (loaded == nullptr) {
    ASSIGN_OR_RETURN(NcclLibrary opened, Open());
    loaded = new NcclLibrary(std::move(opened));
  }
  return loaded;
}

}  // namespace bascule
