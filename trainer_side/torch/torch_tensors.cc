#include "trainer_side/torch/torch_tensors.h"

#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "trainer_side/layouts/flat_parameter_layout.h"

// torch brings glog's CHECK; ours stays as it was.
#pragma push_macro("CHECK")
#undef CHECK
#include <ATen/core/Tensor.h>
#pragma pop_macro("CHECK")

namespace bascule {
namespace {

std::optional<DType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::kBool;
    case at::kByte:
      return DType::kU8;
    case at::kChar:
      return DType::kI8;
    case at::kShort:
      return DType::kI16;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBf16;
    case at::kInt:
      return DType::kI32;
    case at::kFloat:
      return DType::kF32;
    case at::kLong:
      return DType::kI64;
    case at::kDouble:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

template <typename T>
std::string TextOf(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

Status Refused(const char* reason, const std::string& name, const std::string& why) {
  return Status::InvalidArgument(reason, fmt::format("tensor={} {}", name, why));
}

// Its elements lie in host memory, each at its place by the strides.
Result<DType> CheckReadable(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return Refused("bad_shard", name, "is undefined");
  if (tensor.layout() != at::kStrided) return Refused("not_strided", name, "layout=" + TextOf(tensor.layout()));
  if (!tensor.device().is_cpu()) return Refused("not_in_host_memory", name, "device=" + tensor.device().str());
  if (tensor.is_conj() || tensor.is_neg()) return Refused("lazy_view", name, "resolve_conj, resolve_neg make it plain");
  if (const std::optional<DType> dtype = DTypeOf(tensor.scalar_type())) return *dtype;
  return Refused("unsupported_dtype", name, std::string("dtype=") + c10::toString(tensor.scalar_type()));
}

// Of shapes with at most kMaxDims dimensions.
Dims DimsOf(at::IntArrayRef numbers) { return Dims(std::span(numbers.data(), numbers.size())); }

bool HasShape(const at::Tensor& tensor, const Dims& shape) {
  return std::cmp_equal(tensor.dim(), shape.size()) && DimsOf(tensor.sizes()) == shape;
}

// What a tensor looked like when it was added.
struct Sight {
  std::string name;
  at::Tensor tensor;
  const void* data;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  Sight(std::string of, const at::Tensor& seen)
      : name(std::move(of)),
        tensor(seen),
        data(seen.data_ptr()),
        sizes(seen.sizes().vec()),
        strides(seen.strides().vec()) {}
  bool IsAsBefore() const {
    return tensor.data_ptr() == data && tensor.sizes() == at::IntArrayRef(sizes) &&
           tensor.strides() == at::IntArrayRef(strides);
  }
};

}  // namespace

struct TorchTensors::Held {
  std::vector<Sight> sights;
  std::vector<ShardView> views;
};

TorchTensors::TorchTensors() : held_(std::make_unique<Held>()) {}
TorchTensors::~TorchTensors() = default;
TorchTensors::TorchTensors(TorchTensors&&) noexcept = default;
TorchTensors& TorchTensors::operator=(TorchTensors&&) noexcept = default;

Status TorchTensors::AddShard(const ShardPlacement& placement, const at::Tensor& local) {
  const Result<Box> box = ShardOfRank(placement.shape, placement.mesh, placement.placements, placement.rank);
  if (!box.ok()) return box.status().WithContext(fmt::format("tensor={}", placement.name));
  if (box->Empty() && (!local.defined() || local.numel() == 0)) return OkStatus();
  ASSIGN_OR_RETURN(const DType dtype, CheckReadable(placement.name, local));
  if (!HasShape(local, box->extent)) {
    return Refused(
        "bad_shard", placement.name,
        fmt::format("local shape={} for {} of {}", TextOf(local.sizes()), box->ToString(), placement.shape.ToString()));
  }
  held_->sights.emplace_back(placement.name, local);
  held_->views.push_back({.tensor = {placement.name, dtype, placement.shape},
                          .box = *box,
                          .data = local.data_ptr(),
                          .stride = DimsOf(local.strides())});
  return OkStatus();
}

Status TorchTensors::AddFlat(const FlatPlacement& placement, const at::Tensor& shard) {
  ASSIGN_OR_RETURN(const DType dtype, CheckReadable(placement.unit, shard));
  std::vector<TensorSpec> specs;
  FlatUnit unit{.name = placement.unit, .tensors = {}, .alignment = placement.alignment};
  for (const FlatPlacement::Part& part : placement.parts) {
    specs.push_back({part.name, dtype, part.shape});
    unit.tensors.push_back(part.name);
  }
  ASSIGN_OR_RETURN(const FlatLayout flat, FlatParameterLayout(specs, {unit}, placement.ranks));
  if (placement.rank < 0 || placement.rank >= placement.ranks) {
    return Status::InvalidArgument(
        "bad_trainer_layout", fmt::format("unit={} rank={} of {}", placement.unit, placement.rank, placement.ranks));
  }
  if (shard.dim() != 1 || !shard.is_contiguous() || shard.numel() != flat.shard_elements[0]) {
    return Refused("bad_shard", placement.unit,
                   fmt::format("shape={} strides={}; a flat shard is {} contiguous elements", TextOf(shard.sizes()),
                               TextOf(shard.strides()), flat.shard_elements[0]));
  }
  held_->sights.emplace_back(placement.unit, shard);
  const auto rank = static_cast<std::size_t>(placement.rank);
  const auto* const data = static_cast<const std::byte*>(shard.data_ptr());
  for (std::size_t t = 0; t < flat.views[rank].size(); ++t) {
    const MapRow& row = flat.layout.ranks[rank].rows[t];
    held_->views.push_back({.tensor = specs[static_cast<std::size_t>(row.logical)],
                            .box = row.logical_box,
                            .data = data + flat.views[rank][t].offset * ItemBytes(dtype),
                            .stride = {}});
  }
  return OkStatus();
}

Status TorchTensors::AddTo(TensorSource& source, int trainer_rank) const {
  for (const ShardView& view : held_->views) RETURN_IF_ERROR(source.Add(trainer_rank, view));
  // Handles of the storage, not of the tensors: `param.data = other` would make those let go of it.
  auto storages = std::make_shared<std::vector<c10::Storage>>();
  for (const Sight& sight : held_->sights) storages->push_back(sight.tensor.storage());
  source.Keep(std::move(storages));
  return OkStatus();
}

Status TorchTensors::CheckInPlace() const {
  for (const Sight& sight : held_->sights) {
    if (sight.IsAsBefore()) continue;
    return Status::FailedPrecondition("tensor_moved",
                                      fmt::format("tensor={} has other memory than when it was described", sight.name));
  }
  return OkStatus();
}

}  // namespace bascule
