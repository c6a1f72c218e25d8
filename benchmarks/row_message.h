// A row on its way between two processes of one build.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>

#include "benchmarks/benchmark.h"

namespace bascule {

std::string EncodeRow(const BenchmarkRow& row);      // never empty; no field of `row` has a line break
BenchmarkRow DecodeRow(const std::string& message);  // of EncodeRow

}  // namespace bascule
