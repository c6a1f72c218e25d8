// NCCL's functions, found in libnccl.so.2 when they are first needed: nothing links it.
//
// Thread-safety: thread-safe.
#pragma once

#include <nccl.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace bascule {

struct NcclLibrary {
  std::string path;
  int version = 0;  // as NCCL counts: 22809 is 2.28.9
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommRegister) comm_register = nullptr;
  decltype(&::ncclCommDeregister) comm_deregister = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;

  // What NCCL answers, as a Status: see device/communicator.h for the reasons. OK for ncclSuccess, and for
  // ncclInProgress, which is none yet. `communicator` may be null.
  Status ToStatus(ncclResult_t result, std::string_view call, ncclComm_t communicator) const;
};

std::string NcclVersionText(int version);  // "2.28.9"

// The library, opened once; it stays. Unavailable "no_nccl"; FailedPrecondition "nccl_too_old"
Result<const NcclLibrary*> LoadNccl();

}  // namespace bascule
