// A trainer that publishes a version over and over, each with other weights, and reports what became of it. When the
// engine dies it says so, names the phase, and goes on with the next version once the engine is back.
//
//   two_processes_trainer ADDRESS FIRST_VERSION COUNT
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "bridge/session/grpc/grpc_control.h"
#include "bridge/transport/shm/dialer.h"
#include "examples/02_two_processes/model.h"
#include "trainer_side/weight_publisher.h"

namespace {

using namespace bascule;
using std::chrono::seconds;

Status Run(const std::string& address, std::uint64_t first, std::uint64_t count) {
  const TensorSpec master = ExampleTensor(DType::kF32);
  std::vector<float> weights(static_cast<std::size_t>(master.Elements()));
  TensorSource source(/*trainer_ranks=*/1);
  RETURN_IF_ERROR(source.Add(0, {.tensor = master, .box = Box::Whole(master.shape), .data = weights.data()}));

  GrpcControlDialer control;
  ShmDialer shm;
  WeightPublisherOptions options;
  options.replicas = {address};
  options.control = &control;
  options.transports = {&shm};
  options.run = "example";
  options.deadline = seconds(10);
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightPublisher> publisher,
                   WeightPublisher::Create(options, std::move(source)));

  for (std::uint64_t number = first; number < first + count; ++number) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>((i + number) % 251) - 125.0F;
    fmt::print("trainer: version {} sets out\n", number);
    std::fflush(stdout);
    ASSIGN_OR_RETURN(const std::shared_ptr<PublishHandle> handle, publisher->Publish({.number = number}));
    ASSIGN_OR_RETURN(const PublishReport report, handle->WaitCommitted(Deadline::After(Clock::Real(), seconds(30))));
    const ReplicaReport& replica = report.replicas.front();
    if (replica.status.ok()) {
      fmt::print("trainer: version {} committed, staged in {:.1f} ms\n", number, replica.stage_ms);
    } else {
      fmt::print("trainer: version {} failed in {}: {}\n", number, replica.phase, replica.status.ToString());
    }
    std::fflush(stdout);
  }
  return OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: two_processes_trainer ADDRESS FIRST_VERSION COUNT\n");
    return 2;
  }
  const Status status = Run(argv[1], std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  if (!status.ok()) fmt::print(stderr, "trainer: {}\n", status.ToString());
  return status.ok() ? 0 : 1;
}
