// The benchmarks of moving frames; registry.cc names them.
//
// Thread-safety: confined to one thread; a benchmark wants the machine to itself.
#pragma once

#include <vector>

#include "benchmarks/benchmark.h"
#include "bridge/transport/transport.h"

namespace bascule {

Result<std::vector<BenchmarkRow>> RunShmBenchmark(const BenchmarkScale& scale);
Result<std::vector<BenchmarkRow>> RunGrpcBenchmark(const BenchmarkScale& scale);

inline constexpr std::int32_t kBenchmarkCredits = 4;

// What a route of a benchmark begins with.
RouteHello BenchmarkHello(std::uint64_t connection);

// Copies `source` into frames and sends them; returns when all are acknowledged. False when the route fails.
bool SendCopies(BucketSender& sender, std::span<const std::byte> source);

// Copies frames into `target`, round and round, until the route ends.
void ReceiveCopies(BucketReceiver& receiver, std::span<std::byte> target);

}  // namespace bascule
