#include <unordered_set>

#include "base/checked_math.h"
#include "bridge/layout/layout.h"

namespace bascule {
namespace {

Status BadLayout(std::string message) { return Status::InvalidArgument("bad_layout", std::move(message)); }

Status CheckName(const std::string& name) {
  if (name.empty()) return BadLayout("a tensor has no name");
  if (name.size() > kMaxNameBytes) {
    return BadLayout(fmt::format("name of {} bytes, most={}: {}...", name.size(), kMaxNameBytes, name.substr(0, 64)));
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20)
      return BadLayout("control character in a name of " + std::to_string(name.size()) + " bytes");
  }
  return OkStatus();
}

// Every partial product of strides fits too, so no index computed later can overflow.
Status CheckShape(const std::string& name, DType dtype, const Dims& shape) {
  std::optional<std::int64_t> bytes = ItemBytes(dtype);
  for (const std::int64_t count : shape) {
    if (count < 0) return BadLayout(fmt::format("tensor={} negative extent in shape={}", name, shape.ToString()));
    bytes = CheckedMul(*bytes, std::max<std::int64_t>(count, 1));
    if (!bytes) return BadLayout(fmt::format("tensor={} shape={} has more than 2^63 bytes", name, shape.ToString()));
  }
  return OkStatus();
}

Status CheckStride(const LocalTensor& tensor) {
  if (tensor.stride.empty()) return OkStatus();
  if (tensor.stride.size() != tensor.shape.size()) {
    return BadLayout(fmt::format("tensor={} shape={} stride={}: other number of dimensions", tensor.name,
                                 tensor.shape.ToString(), tensor.stride.ToString()));
  }
  std::optional<std::int64_t> reach = ItemBytes(tensor.dtype);
  for (int d = 0; d < tensor.shape.size() && reach; ++d) {
    if (tensor.stride[d] < 0)
      return BadLayout(fmt::format("tensor={} negative stride={}", tensor.name, tensor.stride.ToString()));
    const auto step = CheckedMul(tensor.stride[d], std::int64_t{ItemBytes(tensor.dtype)});
    const auto span = step ? CheckedMul(*step, tensor.shape[d]) : std::nullopt;
    reach = span ? CheckedAdd(*reach, *span) : std::nullopt;
  }
  if (!reach) {
    return BadLayout(fmt::format("tensor={} stride={} reaches past 2^63 bytes", tensor.name, tensor.stride.ToString()));
  }
  return OkStatus();
}

// What is wrong with a row; empty when nothing is.
std::string FaultOfRow(const MapRow& row, const RankLayout& rank, const std::vector<TensorSpec>& tensors) {
  const auto in_range = [](std::int32_t index, std::size_t count) {
    return index >= 0 && static_cast<std::size_t>(index) < count;
  };
  if (!in_range(row.local, rank.tensors.size())) {
    return fmt::format("local index {} of {} tensors", row.local, rank.tensors.size());
  }
  const LocalTensor& local = rank.tensors[static_cast<std::size_t>(row.local)];
  if (!FitsIn(row.local_box, local.shape)) {
    return fmt::format("local box outside tensor={} shape={}", local.name, local.shape.ToString());
  }
  if (row.logical == kFill) return "";
  if (!in_range(row.logical, tensors.size())) {
    return fmt::format("logical index {} of {} tensors", row.logical, tensors.size());
  }
  const TensorSpec& logical = tensors[static_cast<std::size_t>(row.logical)];
  if (!FitsIn(row.logical_box, logical.shape)) {
    return fmt::format("logical box outside tensor={} shape={}", logical.name, logical.shape.ToString());
  }
  if (!SameElements(row.local_box, row.logical_box)) {
    return fmt::format("extents of tensor={}: local {} and logical {} differ", logical.name,
                       row.local_box.extent.ToString(), row.logical_box.extent.ToString());
  }
  if (local.dtype != logical.dtype) {
    return fmt::format("dtype of tensor={}: local {} and logical {} differ", logical.name, DTypeName(local.dtype),
                       DTypeName(logical.dtype));
  }
  return "";
}

}  // namespace

Status CheckTensors(const std::vector<TensorSpec>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    RETURN_IF_ERROR(CheckName(tensor.name));
    if (!names.insert(tensor.name).second) return BadLayout("two tensors are named " + tensor.name);
    RETURN_IF_ERROR(CheckShape(tensor.name, tensor.dtype, tensor.shape));
  }
  return OkStatus();
}

Status CheckRank(const RankLayout& rank, const std::vector<TensorSpec>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const LocalTensor& tensor : rank.tensors) {
    RETURN_IF_ERROR(CheckName(tensor.name));
    if (!names.insert(tensor.name).second) return BadLayout("two local tensors are named " + tensor.name);
    RETURN_IF_ERROR(CheckShape(tensor.name, tensor.dtype, tensor.shape));
    RETURN_IF_ERROR(CheckStride(tensor));
  }
  for (std::size_t i = 0; i < rank.rows.size(); ++i) {
    const std::string fault = FaultOfRow(rank.rows[i], rank, tensors);
    if (!fault.empty()) return BadLayout(fmt::format("row {}: {}", i, fault));
  }
  return OkStatus();
}

Status CheckLayout(const Layout& layout) {
  RETURN_IF_ERROR(CheckTensors(layout.tensors));
  for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
    const Status status = CheckRank(layout.ranks[r], layout.tensors);
    if (!status.ok()) return status.WithContext(fmt::format("rank {}", r));
  }
  return OkStatus();
}

}  // namespace bascule
