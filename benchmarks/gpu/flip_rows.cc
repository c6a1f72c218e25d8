#include <algorithm>

#include "benchmarks/gpu/changes.h"
#include "benchmarks/gpu/rows.h"
#include "benchmarks/gpu/stepping_engine.h"
#include "bridge/send/publish_session.h"
#include "bridge/send/weight_device.h"
#include "bridge/transport/cuda_ipc/dialer.h"
#include "trainer_side/tensor_source.h"

namespace bascule {
namespace {

constexpr int kSlowFlips = 20;  // of those that move all bytes

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

// From memory of this process, by the way that everything takes.
Status PublishFrom(GpuRun& run, GpuEngine& engine, std::uint64_t number, std::span<const std::byte> weights) {
  TensorSource source(/*trainer_ranks=*/1);
  const std::byte* at = weights.data();
  for (const TensorSpec& tensor : ModelTensors(run.scale().model_bytes)) {
    RETURN_IF_ERROR(source.Add(0, {.tensor = tensor, .box = Box::Whole(tensor.shape), .data = at}));
    at += tensor.Bytes();
  }
  source.LieOn(std::make_shared<WeightDevice>(run.device(), run.kernels()));
  CudaIpcDialer dialer(run.device());
  ConnectionOptions connection{.address = GpuEngine::kAddress, .control = &engine.control(), .transports = {&dialer}};
  VersionOffer offer{.run = "bench", .number = number};
  return PublishOnce(source, std::move(connection), std::move(offer), Soon()).status;
}

// Two versions, so that there is one to flip back to. No tensor is in both: a flip in place would leave it alone.
Status PublishTwo(GpuRun& run, GpuEngine& engine) {
  ASSIGN_OR_RETURN(auto weights, run.Noise(run.scale().model_bytes));
  RETURN_IF_ERROR(PublishFrom(run, engine, 1, weights->bytes()));
  weights.reset();
  ASSIGN_OR_RETURN(weights, run.SmallNumbers(run.scale().model_bytes));
  return PublishFrom(run, engine, 2, weights->bytes());
}

// What `flip` says of its stalls, in microseconds, as two rows.
Status StallRows(GpuRun& run, const std::string& name, int flips, const std::function<Result<double>()>& flip,
                 double limit_us, const std::string& limit_what) {
  std::vector<double> stalls;
  for (int i = 0; i < flips; ++i) {
    ASSIGN_OR_RETURN(const double stall, flip());
    stalls.push_back(stall);
  }
  run.Row(name + "_p50", Quantile(stalls, 0.5), "us", limit_us, limit_what);
  run.Row(name + "_p99", Quantile(stalls, 0.99), "us", limit_us, limit_what);
  return OkStatus();
}

Result<double> RollBack(GpuEngine& engine) {
  ASSIGN_OR_RETURN(const FlipReport report, engine.receiver().Rollback(std::nullopt, Soon()));
  RETURN_IF_ERROR(engine.steps().failure());
  return report.flip_stall_us;
}

Status ShadowRows(GpuRun& run) {
  ASSIGN_OR_RETURN(const auto engine, GpuEngine::Create(run, FlipMode::kShadow));
  RETURN_IF_ERROR(PublishTwo(run, *engine));
  engine->StartSteps();
  return StallRows(
      run, "gpu_stall_shadow", run.scale().flips, [&] { return RollBack(*engine); }, 1000, "1 ms promised");
}

// All bytes of both slots change places, and what is live then is digested.
Status InPlaceRows(GpuRun& run) {
  ASSIGN_OR_RETURN(const auto engine, GpuEngine::Create(run, FlipMode::kInPlace));
  RETURN_IF_ERROR(PublishTwo(run, *engine));
  engine->StartSteps();
  ASSIGN_OR_RETURN(const double bandwidth, run.CopyBandwidth());
  const double bytes = 7 * static_cast<double>(run.scale().model_bytes);
  return StallRows(
      run, "gpu_stall_in_place", std::min(run.scale().flips, kSlowFlips), [&] { return RollBack(*engine); },
      bytes / bandwidth * 1e6, "three copies and a read of a slot, at the bandwidth of a device copy");
}

// One element in a hundred of a slot, scattered between two steps and digested before the next one.
Status ScatterStallRows(GpuRun& run, GpuEngine& engine) {
  ASSIGN_OR_RETURN(const auto slot, run.Noise(run.scale().model_bytes));
  ASSIGN_OR_RETURN(const SlotChanges changes, SlotChanges::Make(run, slot->bytes(), 0.01));
  const auto flip = [&]() -> Result<double> {
    Status done;
    ASSIGN_OR_RETURN(const SafePoint at, engine.steps().RunAtSafePoint(
                                             0,
                                             [&] {
                                               done = run.kernels().scatter(changes.batch(), run.stream().handle());
                                               if (done.ok()) done = run.Await();
                                             },
                                             Soon()));
    RETURN_IF_ERROR(done);
    return std::chrono::duration<double, std::micro>(at.stall).count();
  };
  return StallRows(run, "gpu_stall_scatter_1pct", std::min(run.scale().flips, 3 * kSlowFlips), flip, 10'000,
                   "10 ms promised");
}

// The copy of a whole slot that a flip by copying costs.
Status CopyRow(GpuRun& run) {
  ASSIGN_OR_RETURN(const auto from, run.Noise(run.scale().model_bytes));
  ASSIGN_OR_RETURN(const auto to, run.Allocate(run.scale().model_bytes));
  ASSIGN_OR_RETURN(const double bandwidth, run.CopyBandwidth());
  ASSIGN_OR_RETURN(const double seconds, run.SecondsOf([&] { return run.stream().Copy(to->bytes(), from->bytes()); }));
  run.Row("gpu_flip_by_copy", seconds * 1e3, "ms", 2 * static_cast<double>(from->bytes().size()) / bandwidth * 1e3,
          "the same bytes at the bandwidth of a shorter copy");
  return OkStatus();
}

}  // namespace

Status FlipRows(GpuRun& run) {
  RETURN_IF_ERROR(CopyRow(run));
  RETURN_IF_ERROR(ShadowRows(run));
  RETURN_IF_ERROR(InPlaceRows(run));
  ASSIGN_OR_RETURN(const auto engine, GpuEngine::Create(run, FlipMode::kShadow));
  RETURN_IF_ERROR(PublishTwo(run, *engine));
  engine->StartSteps();
  return ScatterStallRows(run, *engine);
}

}  // namespace bascule
