// The GPU benchmarks: one line of JSON a row, as `bascule bench --json` prints them; scripts/gpu_check makes a table of
// it.
//
//   gpu_bench          everything, sized by the memory of the device
//   gpu_bench --dry    everything once and small: that it runs through
#include <fmt/core.h>

#include <cstring>
#include <optional>

#include "benchmarks/gpu/remote_trainer.h"
#include "benchmarks/gpu/rows.h"

namespace bascule {
namespace {

Status Run(bool dry, PeerLink& trainer) {
  const GpuScale small = GpuScale::Dry();
  ASSIGN_OR_RETURN(const auto run, GpuRun::Open(dry ? &small : nullptr));
  ASSIGN_OR_RETURN(const double bandwidth, run->CopyBandwidth());
  run->Row("gpu_copy", bandwidth / 1e9, "GB/s", bandwidth / 1e9, "itself: bytes read and written");
  RETURN_IF_ERROR(KernelRows(*run));
  RETURN_IF_ERROR(ScatterRows(*run));
  RETURN_IF_ERROR(FlipRows(*run));
  return SyncRows(*run, trainer);
}

int Main(int argc, char** argv) {
  const bool dry = argc == 2 && std::strcmp(argv[1], "--dry") == 0;
  if (argc > 1 && !dry) {
    fmt::print(stderr, "usage: gpu_bench [--dry]\n");
    return 2;
  }
  // Before this process has seen the device: what CUDA holds does not survive a fork.
  const auto trainer = PeerProcess::Start(RunRemoteTrainer);
  const Status status = trainer.ok() ? Run(dry, (*trainer)->link()) : trainer.status();
  if (status.ok()) return 0;
  fmt::print(stderr, "gpu_bench: {}\n", status.ToString());
  return 1;
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) { return bascule::Main(argc, argv); }
