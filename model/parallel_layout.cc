#include "model/parallel_layout.h"

#include <fmt/format.h>

namespace bascule {
namespace {

constexpr int kRanksMax = 1024;

}  // namespace

std::string ParallelLayout::ToString() const {
  return fmt::format("tensor={} pipeline={} expert_parallel={}", tensor, pipeline, expert_parallel);
}

Status CheckParallelLayout(const ParallelLayout& parallel) {
  const auto fits = [](int size) { return size >= 1 && size <= kRanksMax; };
  if (fits(parallel.tensor) && fits(parallel.pipeline)) return OkStatus();
  return Status::InvalidArgument("bad_parallel_layout",
                                 fmt::format("{}: want sizes from 1 to {}", parallel.ToString(), kRanksMax));
}

}  // namespace bascule
