// A Worker where a caller can be told that there is no thread for it; the constructor of Worker ends the process then.
//
// Thread-safety: thread-safe.
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "base/status.h"
#include "base/worker.h"

namespace bascule {

// As Worker's constructor.
//
// ResourceExhausted "thread_limit"
Result<Worker> StartWorker(std::string name, std::function<void(std::stop_token)> body);

}  // namespace bascule
