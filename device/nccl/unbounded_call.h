// Calls of NCCL that end when NCCL likes: each runs on a thread of its own, and is waited for until a deadline.
//
// Thread-safety: thread-safe.
#pragma once

#include <nccl.h>

#include <functional>

#include "base/clock.h"
#include "base/status.h"

namespace bascule {

// What `call` returned. One that does not come back keeps its thread until the process ends.
//
// DeadlineExceeded "nccl_stuck"
Result<ncclResult_t> RunUnbounded(std::function<ncclResult_t()> call, Deadline deadline, Clock& clock);

}  // namespace bascule
