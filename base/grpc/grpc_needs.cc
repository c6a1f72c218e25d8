#include <grpc/grpc.h>

#include <latch>
#include <vector>

#include "base/descriptors.h"
#include "base/grpc/grpc_needs_internal.h"
#include "base/start_worker.h"

namespace bascule {
namespace {

constexpr int kDescriptors = 16;
constexpr int kThreads = 12;
constexpr int kServerThreads = 24;

// That so many can run at once.
Status CheckThreads(int count) {
  std::latch end(1);
  Status status;
  std::vector<Worker> workers;
  for (int i = 0; i < count && status.ok(); ++i) {
    Result<Worker> worker = StartWorker("grpc-needs", [&end](std::stop_token) { end.wait(); });
    status = worker.status();
    if (worker.ok()) workers.push_back(*std::move(worker));
  }
  end.count_down();
  for (Worker& worker : workers) worker.Join();
  return status;
}

// Whoever destroys gRPC's last object waits for its threads, and one of them polls a connection with unsent bytes for
// as long as TCP tries to send them: minutes, when a wire is pulled. So there is no last object before the process
// ends.
void KeepGrpcUp() { [[maybe_unused]] static const bool up = (grpc_init(), true); }

}  // namespace

Status CheckGrpcNeeds() {
  static const Status threads = CheckThreads(kThreads);
  RETURN_IF_ERROR(threads);
  RETURN_IF_ERROR(CheckDescriptors(kDescriptors));
  KeepGrpcUp();
  return OkStatus();
}

Status CheckGrpcServerNeeds() { return CheckThreads(kServerThreads); }

}  // namespace bascule
