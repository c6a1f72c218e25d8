// The functions of cuBLAS that we call, found in libcublas.so.13 when they are first needed: linking the library costs
// every start 80 ms and 218 MiB.
//
// Thread-safety: thread-safe.
#pragma once

#include <cublas_v2.h>

#include <string_view>

#include "base/status.h"
#include "device/device.h"

namespace bascule {

struct Cublas {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetWorkspace_v2) set_workspace;
  decltype(&cublasGemmEx_64) gemm;
  decltype(&cublasGetStatusName) status_name;

  // OK for success. `call` is the library's name for what was asked.
  Status ToStatus(cublasStatus_t answer, std::string_view call, const DeviceDescription& device) const;
};

// Opens it, once; it stays open.
//
// Unavailable "no_cublas"
Result<const Cublas*> LoadCublas();

}  // namespace bascule
