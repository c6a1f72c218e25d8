// A group of the GPU benchmarks: one line of JSON a row, as `bascule bench --json` prints them; scripts/gpu_check makes
// a table of them. Each group is a process of its own, so that a device that is lost in one costs no other its rows.
//
//   gpu_bench GROUP          sized by the memory of the device
//   gpu_bench --dry GROUP    once and small: that it runs through
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "benchmarks/gpu/remote_trainer.h"
#include "benchmarks/gpu/rows.h"

namespace bascule {
namespace {

struct Group {
  std::string_view name;
  Status (*rows)(GpuRun& run, PeerLink* trainer);
  bool wants_trainer = false;  // in a process of its own
};

Status CopyRow(GpuRun& run) {
  ASSIGN_OR_RETURN(const double bandwidth, run.CopyBandwidth());
  run.Row("gpu_copy", bandwidth / 1e9, "GB/s", bandwidth / 1e9, "itself: bytes read and written");
  return OkStatus();
}

constexpr std::array kGroups = {
    Group{"copy", [](GpuRun& run, PeerLink*) { return CopyRow(run); }},
    Group{"kernels", [](GpuRun& run, PeerLink*) { return KernelRows(run); }},
    Group{"scatter", [](GpuRun& run, PeerLink*) { return ScatterRows(run); }},
    Group{"flips", [](GpuRun& run, PeerLink*) { return FlipRows(run); }},
    Group{"decode", [](GpuRun& run, PeerLink*) { return DecodeRows(run); }},
    Group{"sync", [](GpuRun& run, PeerLink* trainer) { return SyncRows(run, *trainer, /*large=*/false); }, true},
    Group{"sync_large", [](GpuRun& run, PeerLink* trainer) { return SyncRows(run, *trainer, /*large=*/true); }, true}};

Status Run(const Group& group, bool dry) {
  std::unique_ptr<PeerProcess> trainer;
  if (group.wants_trainer) {
    // Before this process has seen the device: what CUDA holds does not survive a fork.
    ASSIGN_OR_RETURN(trainer, PeerProcess::Start(RunRemoteTrainer));
  }
  const GpuScale small = GpuScale::Dry();
  ASSIGN_OR_RETURN(const auto run, GpuRun::Open(dry ? &small : nullptr));
  return group.rows(*run, trainer == nullptr ? nullptr : &trainer->link());
}

int Main(int argc, char** argv) {
  std::vector<std::string_view> words(argv + 1, argv + argc);
  const bool dry = !words.empty() && words.front() == "--dry";
  if (dry) words.erase(words.begin());
  const auto group = std::ranges::find(kGroups, words.size() == 1 ? words[0] : "", &Group::name);
  if (group == kGroups.end()) {
    fmt::print(stderr, "usage: gpu_bench [--dry] GROUP\n");
    for (const Group& known : kGroups) fmt::print(stderr, "  {}\n", known.name);
    return 2;
  }
  const Status status = Run(*group, dry);
  if (status.ok()) return 0;
  fmt::print(stderr, "gpu_bench: {}: {}\n", group->name, status.ToString());
  return 1;
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) { return bascule::Main(argc, argv); }
