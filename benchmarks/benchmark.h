// The numbers that README quotes, each beside its physical limit measured in the same run: what `bascule bench` prints.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace bascule {

// One printed row. A rate is in GB/s = 10^9 bytes a second.
struct BenchmarkRow {
  std::string name;
  double value = 0;  // median over the repetitions
  std::string unit;
  double limit = 0;        // in the same unit, its median in the same repetitions
  std::string limit_what;  // "memcpy of the same bytes, one thread"
  double ratio() const { return value / limit; }
};

// How much a benchmark moves and how often. The default is what README quotes; tests run a small one.
struct BenchmarkScale {
  // Of a kernel's memory: a multiple of 4 MiB, past every cache near a core.
  std::size_t bytes = std::size_t{512} << 20;
  // Of the model that is synced, in bf16; other models are so many times smaller.
  std::int64_t model_bytes = 1'200'000'000;
  int flips = 60;  // of each row that times flips
  int rounds = 9;
  int replicas = 1000;  // of the largest fleet
  // An empty folder for files, on a disk; whoever runs the benchmark removes it. RunBenchmarks makes one for each.
  std::string scratch = {};
};

struct Benchmark {
  std::string_view name;
  std::string_view summary;  // one line for --help
  // ResourceExhausted "device_memory"  and what the parts that are measured can fail with
  Result<std::vector<BenchmarkRow>> (*run)(const BenchmarkScale& scale);  // before this process has other threads
};

// Every benchmark of this build, cheap ones first.
std::span<const Benchmark> AllBenchmarks();

// Runs the benchmark `name`, or all for an empty name, each in a process of its own, and hands over each row as soon as
// it is there. No thread of this process works meanwhile: see peer_process.h.
//
// NotFound "no_such_benchmark"  with the names there are
// PermissionDenied "directory_not_writable"  /var/tmp
// Cancelled "cancelled"         `stop`
Status RunBenchmarks(std::string_view name, const BenchmarkScale& scale,
                     const std::function<void(const BenchmarkRow&)>& on_row, std::stop_token stop = {});

}  // namespace bascule
