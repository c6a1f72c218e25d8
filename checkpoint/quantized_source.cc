#include "checkpoint/quantized_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <unordered_map>

#include "base/worker.h"
#include "kernels/cast.h"
#include "kernels/pack.h"
#include "kernels/quantize.h"

namespace bascule {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kThreadsMax = 16;

// Boxes of the source and boxes of this, in one order.
class JoinedReader final : public BoxReader {
 public:
  JoinedReader(std::vector<SourceBox> boxes, std::vector<bool> own, std::unique_ptr<BoxReader> others)
      : boxes_(std::move(boxes)), own_(std::move(own)), others_(std::move(others)) {}

  Result<BoxView> Next() override {
    const std::size_t box = next_++;
    if (own_[box]) return BoxView{boxes_[box].base, boxes_[box].place, nullptr};
    return others_->Next();
  }

 private:
  const std::vector<SourceBox> boxes_;
  const std::vector<bool> own_;
  const std::unique_ptr<BoxReader> others_;
  std::size_t next_ = 0;
};

}  // namespace

struct QuantizedSource::RowRef {
  int rank = 0;
  MapRow row;
};

struct QuantizedSource::Job {
  TensorSpec spec;           // as the source has it
  std::vector<RowRef> rows;  // of the source
  std::size_t codes = 0;     // places in memory_
  std::size_t scale_inv = 0;
};

Result<std::unique_ptr<QuantizedSource>> QuantizedSource::Make(const WeightSource& source,
                                                               const std::vector<QuantizedWeight>& weights,
                                                               const std::stop_token& stop) {
  std::unique_ptr<QuantizedSource> made(new QuantizedSource(source));
  ASSIGN_OR_RETURN(const std::vector<Job> jobs, made->AddWeights(weights));
  made->memory_ = std::make_unique_for_overwrite<std::byte[]>(made->memory_bytes_);
  RETURN_IF_ERROR(made->Quantize(jobs, stop));
  return made;
}

Result<std::vector<QuantizedSource::Job>> QuantizedSource::AddWeights(const std::vector<QuantizedWeight>& weights) {
  std::unordered_map<std::string, std::int32_t> logical_of;
  for (std::size_t t = 0; t < layout_.tensors.size(); ++t) {
    logical_of.emplace(layout_.tensors[t].name, static_cast<std::int32_t>(t));
  }
  std::unordered_map<std::int32_t, std::size_t> job_of;  // by logical tensor
  std::vector<std::int32_t> logical;
  for (const QuantizedWeight& weight : weights) {
    const auto found = logical_of.find(weight.weight);
    if (found == logical_of.end()) {
      return Status::FailedPrecondition("tensor_missing", fmt::format("{} is to be quantised", weight.weight));
    }
    job_of.emplace(found->second, logical.size());
    logical.push_back(found->second);
  }
  std::vector<Job> jobs(weights.size());
  for (std::size_t rank = 0; rank < layout_.ranks.size(); ++rank) {
    // The rows of what is quantised leave the layout for the jobs.
    std::erase_if(layout_.ranks[rank].rows, [&](const MapRow& row) {
      const auto found = job_of.find(row.logical);
      if (found == job_of.end()) return false;
      jobs[found->second].rows.push_back({static_cast<int>(rank), row});
      return true;
    });
  }
  for (std::size_t w = 0; w < weights.size(); ++w) RETURN_IF_ERROR(AddWeight(weights[w], logical[w], jobs[w]));
  return jobs;
}

Status QuantizedSource::AddWeight(const QuantizedWeight& weight, std::int32_t logical, Job& job) {
  TensorSpec& spec = layout_.tensors[static_cast<std::size_t>(logical)];
  if ((spec.dtype != DType::kBf16 && spec.dtype != DType::kF32) || spec.shape.size() != 2) {
    return Status::InvalidArgument("cannot_quantize",
                                   fmt::format("{}: {} {}, want two dimensions of BF16 or F32", spec.name,
                                               DTypeName(spec.dtype), spec.shape.ToString()));
  }
  std::int64_t elements = 0;
  for (const RowRef& ref : job.rows) elements += ref.row.logical_box.Elements();
  if (elements != spec.Elements()) {
    return Status::FailedPrecondition(
        "tensor_missing", fmt::format("{}: {} of {} elements are stored", spec.name, elements, spec.Elements()));
  }
  job.spec = spec;
  spec.dtype = DType::kF8E4M3;
  const TensorSpec codes = spec;
  const auto [rank, local] = PlaceOfCodes(job, logical);
  job.codes = AddOwn(rank, local, codes);
  const TensorSpec scales{weight.scale_inv, DType::kF32, {Fp8Blocks(codes.shape[0]), Fp8Blocks(codes.shape[1])}};
  const auto scale_logical = static_cast<std::int32_t>(layout_.tensors.size());
  layout_.tensors.push_back(scales);
  job.scale_inv =
      AddOwn(rank, AddLocal(rank, layout_.ranks[rank].tensors[local].name + "_scale_inv", scale_logical), scales);
  return OkStatus();
}

// Where the stored tensor was, or behind rank 0's others where the weight is a part of one.
std::pair<std::size_t, std::size_t> QuantizedSource::PlaceOfCodes(const Job& job, std::int32_t logical) {
  if (job.rows.size() != 1 || !IsWhole(job.rows[0])) return {0, AddLocal(0, job.spec.name, logical)};
  const auto rank = static_cast<std::size_t>(job.rows[0].rank);
  const MapRow& row = job.rows[0].row;
  LocalTensor& stored = layout_.ranks[rank].tensors[static_cast<std::size_t>(row.local)];
  stored.dtype = DType::kF8E4M3;
  stored.stride = {};
  layout_.ranks[rank].rows.push_back(row);
  return {rank, static_cast<std::size_t>(row.local)};
}

// A local tensor that is a whole logical one.
std::size_t QuantizedSource::AddLocal(std::size_t rank, std::string name, std::int32_t logical) {
  const TensorSpec& spec = layout_.tensors[static_cast<std::size_t>(logical)];
  RankLayout& layout = layout_.ranks[rank];
  const auto local = static_cast<std::int32_t>(layout.tensors.size());
  layout.tensors.push_back({.name = std::move(name), .dtype = spec.dtype, .shape = spec.shape, .stride = {}});
  layout.rows.push_back({local, Box::Whole(spec.shape), logical, Box::Whole(spec.shape)});
  return static_cast<std::size_t>(local);
}

bool QuantizedSource::IsWhole(const RowRef& ref) const {
  const LocalTensor& stored =
      layout_.ranks[static_cast<std::size_t>(ref.rank)].tensors[static_cast<std::size_t>(ref.row.local)];
  return ref.row.local_box == Box::Whole(stored.shape);
}

std::size_t QuantizedSource::AddOwn(std::size_t rank, std::size_t local, const TensorSpec& logical) {
  own_[rank].resize(std::max(own_[rank].size(), layout_.ranks[rank].tensors.size()));
  const std::size_t place = memory_bytes_;
  own_[rank][local] = place;
  memory_bytes_ += (static_cast<std::size_t>(logical.Bytes()) + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

// The largest weights first, each to the thread that is free.
Status QuantizedSource::Quantize(const std::vector<Job>& jobs, const std::stop_token& stop) const {
  std::vector<const Job*> order;
  for (const Job& job : jobs) order.push_back(&job);
  std::ranges::sort(order, std::greater{}, [](const Job* job) { return job->spec.Bytes(); });
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<Status> statuses(std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kThreadsMax));
  const auto run = [&](std::size_t thread) {
    std::vector<std::byte> stored;
    std::vector<std::byte> bf16;
    for (std::size_t j = next++; j < order.size() && !failed; j = next++) {
      statuses[thread] = stop.stop_requested() ? Status::Cancelled("cancelled", "stopped while weights were quantised")
                                               : QuantizeOne(*order[j], stored, bf16);
      if (statuses[thread].ok()) continue;
      failed = true;
      return;
    }
  };
  {
    std::vector<Worker> workers;
    for (std::size_t t = 1; t < statuses.size(); ++t) {
      workers.emplace_back("quantize", [&run, t](const std::stop_token&) { run(t); });
    }
    run(0);
  }
  for (const Status& status : statuses) RETURN_IF_ERROR(status);
  return OkStatus();
}

// The whole logical tensor, as it is stored.
Status QuantizedSource::Gather(const Job& job, std::span<std::byte> stored) const {
  std::vector<SourceBox> boxes;
  for (const RowRef& ref : job.rows) {
    const LocalTensor& local =
        source_.layout().ranks[static_cast<std::size_t>(ref.rank)].tensors[static_cast<std::size_t>(ref.row.local)];
    boxes.push_back({.base = source_.Base(ref.rank, ref.row.local),
                     .item_bytes = ItemBytes(job.spec.dtype),
                     .shape = ShapeOf(ref.row.local_box),
                     .place = PlaceInStrided(ref.row.local_box,
                                             local.stride.empty() ? RowMajorStride(local.shape) : local.stride)});
  }
  const std::unique_ptr<BoxReader> reader = source_.Read(boxes);
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    ASSIGN_OR_RETURN(const BoxView view, reader->Next());
    CopyBoxOnHost(boxes[b].shape, boxes[b].item_bytes, view.base, view.place, stored.data(),
                  PlaceIn(job.rows[b].row.logical_box, job.spec.shape));
  }
  return OkStatus();
}

Status QuantizedSource::QuantizeOne(const Job& job, std::vector<std::byte>& stored,
                                    std::vector<std::byte>& bf16) const {
  const TensorSpec& spec = job.spec;
  stored.resize(static_cast<std::size_t>(spec.Bytes()));
  RETURN_IF_ERROR(Gather(job, stored));
  std::span<const std::byte> values = stored;
  if (spec.dtype == DType::kF32) {
    bf16.resize(stored.size() / 2);
    CastF32ToBf16OnHost(stored, bf16);
    values = bf16;
  }
  const auto codes = static_cast<std::size_t>(spec.Elements());
  const auto scale_bytes = static_cast<std::size_t>(4 * Fp8Blocks(spec.shape[0]) * Fp8Blocks(spec.shape[1]));
  const Status status =
      QuantizeFp8BlocksOnHost(spec.shape[0], spec.shape[1], values, {memory_.get() + job.codes, codes},
                              {memory_.get() + job.scale_inv, scale_bytes});
  return status.ok() ? status : status.WithContext(spec.name);
}

const std::byte* QuantizedSource::Base(int sender_rank, int tensor) const {
  const auto& own = own_[static_cast<std::size_t>(sender_rank)];
  const auto local = static_cast<std::size_t>(tensor);
  if (local < own.size() && own[local]) return memory_.get() + *own[local];
  return source_.Base(sender_rank, tensor);
}

std::unique_ptr<BoxReader> QuantizedSource::Read(std::vector<SourceBox> boxes) const {
  std::vector<bool> own;
  std::vector<SourceBox> others;
  for (const SourceBox& box : boxes) {
    own.push_back(IsOwn(box.base));
    if (!own.back()) others.push_back(box);
  }
  return std::make_unique<JoinedReader>(std::move(boxes), std::move(own), source_.Read(std::move(others)));
}

void QuantizedSource::Release(std::span<const std::byte> memory) const {
  if (!IsOwn(memory.data())) source_.Release(memory);
}

}  // namespace bascule
