#include "bridge/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "bridge/plan/buckets_internal.h"
#include "bridge/plan/name_match_internal.h"
#include "bridge/plan/nearest_name.h"
#include "bridge/plan/slicing_internal.h"

namespace bascule {
namespace {

constexpr std::int64_t kBucketBytesMin = 4096;

Status CheckInput(const Layout& sender, const Layout& engine, const PlanOptions& options) {
  if (const Status status = CheckLayout(sender); !status.ok()) return status.WithContext("sender");
  if (const Status status = CheckLayout(engine); !status.ok()) return status.WithContext("engine");
  for (std::size_t rank = 0; rank < engine.ranks.size(); ++rank) {
    for (const LocalTensor& tensor : engine.ranks[rank].tensors) {
      if (tensor.stride.empty() || tensor.stride == RowMajorStride(tensor.shape)) continue;
      return Status::InvalidArgument("bad_layout", fmt::format("engine: rank {}: tensor={} stride={} is not dense",
                                                               rank, tensor.name, tensor.stride.ToString()));
    }
  }
  if (options.bucket_bytes < kBucketBytesMin || options.bucket_bytes % kSliceAlignment != 0) {
    return Status::InvalidArgument("bad_layout", fmt::format("bucket_bytes={}, at least {} and a multiple of {}",
                                                             options.bucket_bytes, kBucketBytesMin, kSliceAlignment));
  }
  if (options.window_bytes < 0) {
    return Status::InvalidArgument("bad_layout", fmt::format("window_bytes={}", options.window_bytes));
  }
  return OkStatus();
}

std::optional<Conversion> ConversionOf(DType sender, DType engine) {
  if (sender == engine) return Conversion::kNone;
  if (sender == DType::kF32 && engine == DType::kBf16) return Conversion::kF32ToBf16;
  if (sender == DType::kBf16 && engine == DType::kF32) return Conversion::kBf16ToF32;
  return std::nullopt;
}

// All shapes are compared before all dtypes, and both before any byte is planned: the list shows another model at once.
Status CheckSpecs(const Layout& sender, const Layout& engine, const NameMatch& match) {
  std::vector<std::string> shapes;
  std::vector<std::string> dtypes;
  for (std::size_t t = 0; t < engine.tensors.size(); ++t) {
    if (match.sender_of_engine[t] < 0) continue;
    const TensorSpec& wanted = engine.tensors[t];
    const TensorSpec& held = sender.tensors[static_cast<std::size_t>(match.sender_of_engine[t])];
    if (held.shape != wanted.shape) {
      shapes.push_back(
          fmt::format("{}: sender {} engine {}", wanted.name, held.shape.ToString(), wanted.shape.ToString()));
    }
    if (!ConversionOf(held.dtype, wanted.dtype)) {
      dtypes.push_back(
          fmt::format("{}: sender {} engine {}", wanted.name, DTypeName(held.dtype), DTypeName(wanted.dtype)));
    }
  }
  if (!shapes.empty()) {
    return Status::FailedPrecondition("shape_mismatch", fmt::format("{} tensors: {}", shapes.size(), FirstOf(shapes)));
  }
  if (!dtypes.empty()) {
    return Status::FailedPrecondition(
        "dtype_mismatch",
        fmt::format("{} tensors: {}; only F32 to BF16 and BF16 to F32 are converted", dtypes.size(), FirstOf(dtypes)));
  }
  return OkStatus();
}

const MapRow& RowOf(const Layout& layout, const RowRef& ref) {
  return layout.ranks[static_cast<std::size_t>(ref.rank)].rows[static_cast<std::size_t>(ref.row)];
}

// Part `box` of `run`, which `from` sends.
Slice SliceOf(const Run& run, const Box& box, const RowRef& from, const Layout& sender, const Layout& engine) {
  const MapRow& source = RowOf(sender, from);
  const MapRow& target = RowOf(engine, run.engine);
  const DType held = sender.tensors[static_cast<std::size_t>(source.logical)].dtype;
  const DType wanted = engine.tensors[static_cast<std::size_t>(run.tensor)].dtype;
  return {.tensor = run.tensor,
          .logical_box = box,
          .sender_tensor = source.local,
          .sender_box = CorrespondingBox(box, source.logical_box, source.local_box),
          .engine_tensor = target.local,
          .engine_box = CorrespondingBox(box, target.logical_box, target.local_box),
          .conversion = *ConversionOf(held, wanted),
          .counts = run.counts,
          .payload_offset = 0,
          .payload_bytes = box.Elements() * ItemBytes(wanted)};
}

// `senders`: the sender row of each part.
std::vector<Route> RoutesOf(const Slicing& slicing, const std::vector<RowRef>& senders) {
  std::vector<Route> routes;
  routes.reserve(senders.size());
  for (const Run& run : slicing.runs) {
    for (std::size_t i = 0; i < run.part_count; ++i) {
      const Route route{senders[run.first_part + i * run.part_step].rank, run.engine.rank};
      if (routes.empty() || routes.back() != route) routes.push_back(route);
    }
  }
  std::sort(routes.begin(), routes.end());
  routes.erase(std::unique(routes.begin(), routes.end()), routes.end());
  return routes;
}

// Per tensor of the plan. Those that are carried over are in no window.
std::vector<std::int32_t> WindowsOfSent(const Plan& plan, std::int64_t window_bytes) {
  const std::vector<TensorSpec> sent = SentTensors(plan);
  const std::vector<std::int32_t> of_sent = WindowsOf(sent, window_bytes);
  std::vector<std::int32_t> windows(plan.tensors.size(), -1);
  auto next = of_sent.begin();
  for (std::size_t t = 0; t < windows.size(); ++t) {
    if (!IsCarried(plan, static_cast<std::int32_t>(t))) windows[t] = *next++;
  }
  return windows;
}

// Part `box` of `twins`, which are one run, or the same for several engine ranks.
void SlicesOf(std::span<const Run> twins, const Box& box, const RowRef& from, const Layout& sender,
              const Layout& engine, std::vector<RoutedSlice>& slices) {
  slices.clear();
  for (const Run& run : twins) {
    slices.push_back({.route = {from.rank, run.engine.rank},
                      .engine_row = run.engine.row,
                      .slice = SliceOf(run, box, from, sender, engine)});
  }
}

Status FillBuckets(const Layout& sender, const Layout& engine, const NameMatch& match, const PlanOptions& options,
                   Plan& plan) {
  const bool alike = sender == engine;
  ASSIGN_OR_RETURN(const Slicing slicing,
                   SliceTensors(sender, engine, match, options.bucket_bytes, options.twins && !alike));
  const std::vector<RowRef> senders = alike ? TakeFromTwins(slicing) : BalanceSenders(slicing, sender.ranks.size());
  const std::vector<std::int32_t> windows = WindowsOfSent(plan, options.window_bytes);
  std::int32_t window = 0;
  BucketFiller filler(RoutesOf(slicing, senders), options.bucket_bytes);
  std::vector<RoutedSlice> slices;
  for (std::size_t r = 0; r < slicing.runs.size(); r += slicing.runs[r].twins) {
    const Run& run = slicing.runs[r];
    const auto tensor = static_cast<std::size_t>(run.tensor);
    if (windows[tensor] != window) filler.CloseBuckets();
    window = windows[tensor];
    std::size_t part = run.first_part;
    for (const Box& box : PartsOf(run.logical_box, engine.tensors[tensor].dtype, options.bucket_bytes)) {
      SlicesOf(std::span(slicing.runs).subspan(r, run.twins), box, senders[part], sender, engine, slices);
      filler.Add(slices);
      part += run.part_step;
    }
  }
  filler.MoveInto(plan);
  return OkStatus();
}

}  // namespace

std::vector<std::int32_t> WindowsOf(const std::vector<TensorSpec>& tensors, std::int64_t window_bytes) {
  std::vector<std::int32_t> windows(tensors.size());
  std::int64_t bytes = 0;  // of the last window
  for (std::size_t t = 1; t < tensors.size() && window_bytes > 0; ++t) {
    bytes += tensors[t - 1].Bytes();
    const bool has_room = tensors[t].Bytes() <= window_bytes - bytes;
    windows[t] = windows[t - 1] + (has_room ? 0 : 1);
    if (!has_room) bytes = 0;
  }
  return windows;
}

std::vector<TensorSpec> SentTensors(const Plan& plan) {
  std::vector<TensorSpec> sent;
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    if (!IsCarried(plan, static_cast<std::int32_t>(t))) sent.push_back(plan.tensors[t]);
  }
  return sent;
}

Result<Plan> MakePlan(const Layout& sender, const Layout& engine, const PlanOptions& options) {
  RETURN_IF_ERROR(CheckInput(sender, engine, options));
  ASSIGN_OR_RETURN(NameMatch match, MatchNames(sender.tensors, engine.tensors, options.ignore, options.scope));
  RETURN_IF_ERROR(CheckSpecs(sender, engine, match));
  Plan plan;
  plan.tensors = engine.tensors;
  plan.scope = options.scope;
  plan.carried = std::move(match.carried);
  RETURN_IF_ERROR(FillBuckets(sender, engine, match, options, plan));
  plan.names = std::move(match.names);
  RETURN_IF_ERROR(ProveCoverage(plan, engine));
  plan.sender_layout = LayoutDigest(sender);
  plan.engine_layout = LayoutDigest(engine);
  plan.digest = PlanDigest(plan);
  return plan;
}

}  // namespace bascule
