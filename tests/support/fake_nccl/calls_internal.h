// How the fake's functions begin.
#pragma once

#include <nccl.h>

#include "tests/support/fake_cuda/faults.h"
#include "tests/support/fake_nccl/control.h"

// A fault that was ordered for this call, or nothing. Afterwards `lost` says whether what it begins is never to end,
// and `breaks` which error its communicator then has.
#define FAKE_NCCL_CALL()                                                                            \
  const int fault = ::bascule::fake_cuda::Faults::Get().Take(__func__);                             \
  [[maybe_unused]] const bool lost = fault == ::bascule::FakeNccl::kLost;                           \
  [[maybe_unused]] const auto breaks = static_cast<ncclResult_t>(                                   \
      fault > ::bascule::FakeNccl::kAsynchronous ? fault - ::bascule::FakeNccl::kAsynchronous : 0); \
  if (fault != ncclSuccess && !lost && breaks == ncclSuccess) return static_cast<ncclResult_t>(fault)
