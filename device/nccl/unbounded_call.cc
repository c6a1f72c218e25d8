#include "device/nccl/unbounded_call.h"

#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/worker.h"

namespace bascule {
namespace {

struct Answer {
  Mutex mu;
  CondVar changed;
  std::optional<ncclResult_t> result GUARDED_BY(mu);
};

void KeepForEver(Worker worker) {
  static auto* const mu = new Mutex;
  static auto* const kept = new std::list<Worker>;
  const MutexLock lock(*mu);
  kept->push_back(std::move(worker));
}

}  // namespace

Result<ncclResult_t> RunUnbounded(std::function<ncclResult_t()> call, Deadline deadline, Clock& clock) {
  const auto answer = std::make_shared<Answer>();  // outlives this call where NCCL does not come back
  Worker worker("nccl_call", [answer, call = std::move(call)](const std::stop_token&) {
    const ncclResult_t result = call();
    const MutexLock lock(answer->mu);
    answer->result = result;
    answer->changed.NotifyAll();
  });
  std::optional<ncclResult_t> result;
  {
    const MutexLock lock(answer->mu);
    while (!answer->result && clock.WaitUntil(answer->changed, answer->mu, deadline.point())) continue;
    result = answer->result;
  }
  if (result) return *result;
  KeepForEver(std::move(worker));
  return Status::DeadlineExceeded("nccl_stuck", "NCCL does not come back; its thread and memory stay");
}

}  // namespace bascule
