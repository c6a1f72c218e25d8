#include <sys/resource.h>

#include <fmt/format.h>

#include "benchmarks/measure.h"
#include "benchmarks/moe_layouts.h"
#include "benchmarks/plan_benchmarks.h"
#include "bridge/plan/planner.h"
#include "bridge/plan/projection.h"
#include "bridge/session/grpc/session_codec.h"

namespace bascule {
namespace {

double PeakGigabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e9;
}

double Megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// The layout in the message that carries it to every member of a group.
BenchmarkRow MeasureWire(std::string name, const Layout& layout) {
  const std::string message = EncodeSessionMessage(GroupLayout{layout});
  return {std::move(name), Megabytes(std::ssize(message)), "MB", Megabytes(kMaxSessionMessageBytes),
          "the most that a message may have"};
}

// Planned once: a run lasts seconds, and memory is at its peak in the first as in any other.
Status MeasurePlan(std::string_view name, const MoeSizes& sizes, std::vector<BenchmarkRow>& rows) {
  const Layout trainer = MoeTrainerLayout(sizes);
  const Layout engine = MoeEngineLayout(sizes);
  const double digests = SecondsOf([&] {
    Use(static_cast<std::uint64_t>(LayoutDigest(trainer).bytes[0]) +
        static_cast<std::uint64_t>(LayoutDigest(engine).bytes[0]));
  });
  Result<Plan> plan = Status::Internal("not_planned", "");
  const double seconds = SecondsOf([&] { plan = MakePlan(trainer, engine, {}); });
  RETURN_IF_ERROR(plan.status());
  rows.push_back(
      {fmt::format("plan_moe_{}_{}x{}", name, trainer.ranks.size(), engine.ranks.size()), seconds, "s", digests,
       fmt::format("digests of both layouts; {} tensors, {} buckets", trainer.tensors.size(), plan->buckets.size())});
  if (sizes == MoeSizes{}) {
    rows.push_back(MeasureWire("plan_moe_trainer_layout", trainer));
    rows.push_back(MeasureWire("plan_moe_engine_layout", engine));
    const double whole = Megabytes(SliceMemory(*plan));
    const double own = Megabytes(SliceMemory(ProjectionOf(std::move(*plan), 0)));
    rows.push_back({"plan_moe_own_slices", own, "MB", whole, "the slices of all ranks, which a member gives up"});
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<BenchmarkRow>> RunPlanBenchmark(const BenchmarkScale& scale) {
  std::vector<BenchmarkRow> rows;
  // The full size takes seconds and a gigabyte; a small scale, which tests ask for, stays at one layer.
  const bool small = scale.model_bytes < BenchmarkScale{}.model_bytes;
  for (const int layers : small ? std::vector<int>{1} : std::vector<int>{8, 16, 32}) {
    MoeSizes sizes;
    sizes.layers = layers;
    RETURN_IF_ERROR(MeasurePlan(fmt::format("{}_layers", layers), sizes, rows));
  }
  if (small) return rows;
  for (const int experts_over : {8, 16}) {
    MoeSizes sizes;
    sizes.trainer_experts_over = experts_over;
    RETURN_IF_ERROR(MeasurePlan("1t", sizes, rows));
  }
  for (const int engine_ranks : {32, 64}) {
    MoeSizes sizes;
    sizes.engine_ranks = engine_ranks;
    RETURN_IF_ERROR(MeasurePlan("1t", sizes, rows));
  }
  RETURN_IF_ERROR(MeasurePlan("1t", MoeSizes{}, rows));
  rows.push_back({"plan_moe_peak_memory", PeakGigabytes(), "GB", 2, "the most that a planner may take"});
  return rows;
}

}  // namespace bascule
