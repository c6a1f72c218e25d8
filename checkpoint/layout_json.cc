#include <limits>

#include "checkpoint/layout_json_internal.h"

namespace bascule {
namespace {

OrderedJson DimsJson(const Dims& dims) { return OrderedJson(std::vector<std::int64_t>(dims.begin(), dims.end())); }

OrderedJson BoxJson(const Box& box) { return {DimsJson(box.offset), DimsJson(box.extent)}; }

template <typename Tensor>
OrderedJson SpecJson(const Tensor& tensor) {
  return {{"name", tensor.name}, {"dtype", DTypeName(tensor.dtype)}, {"shape", DimsJson(tensor.shape)}};
}

OrderedJson LocalJson(const LocalTensor& tensor) {
  OrderedJson object = SpecJson(tensor);
  if (!tensor.stride.empty()) object["stride"] = DimsJson(tensor.stride);
  return object;
}

// [local, box, logical, box], or [local, box] for fill.
OrderedJson RowsJson(const std::vector<MapRow>& rows) {
  OrderedJson list = OrderedJson::array();
  for (const MapRow& row : rows) {
    OrderedJson entry = OrderedJson::array({row.local, BoxJson(row.local_box)});
    if (row.logical != kFill) {
      entry.push_back(row.logical);
      entry.push_back(BoxJson(row.logical_box));
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Result<Dims> ReadDims(const Fields& list) {
  Dims dims;
  ASSIGN_OR_RETURN(const std::vector<Fields> items, list.Items(kMaxDims));
  for (const Fields& item : items) {
    ASSIGN_OR_RETURN(const std::int64_t count, item.AsCount());
    dims.push_back(count);
  }
  return dims;
}

Result<Box> ReadBox(const Fields& pair) {
  ASSIGN_OR_RETURN(const std::vector<Fields> items, pair.Items(2));
  if (items.size() != 2) return pair.Bad("not an offset and an extent");
  Box box;
  ASSIGN_OR_RETURN(box.offset, ReadDims(items[0]));
  ASSIGN_OR_RETURN(box.extent, ReadDims(items[1]));
  return box;
}

template <typename Tensor>
Status ReadSpec(const Fields& object, Tensor& tensor) {
  ASSIGN_OR_RETURN(tensor.name, object.Text("name"));
  ASSIGN_OR_RETURN(const std::string dtype, object.Text("dtype"));
  const auto parsed = ParseDType(dtype);
  if (!parsed.ok()) return object.Bad(parsed.status().message());
  tensor.dtype = *parsed;
  ASSIGN_OR_RETURN(const Fields shape, object.Of("shape"));
  ASSIGN_OR_RETURN(tensor.shape, ReadDims(shape));
  return OkStatus();
}

Status ReadLocal(const Fields& object, LocalTensor& tensor) {
  RETURN_IF_ERROR(ReadSpec(object, tensor));
  if (!object.Has("stride")) return OkStatus();
  ASSIGN_OR_RETURN(const Fields stride, object.Of("stride"));
  ASSIGN_OR_RETURN(tensor.stride, ReadDims(stride));
  return OkStatus();
}

Result<MapRow> ReadRow(const Fields& list) {
  ASSIGN_OR_RETURN(const std::vector<Fields> items, list.Items(4));
  if (items.size() != 2 && items.size() != 4) return list.Bad("not a map row");
  MapRow row{.local = 0, .local_box = {}, .logical = kFill, .logical_box = {}};
  ASSIGN_OR_RETURN(row.local, ReadIndex(items[0]));
  ASSIGN_OR_RETURN(row.local_box, ReadBox(items[1]));
  if (items.size() == 2) return row;
  ASSIGN_OR_RETURN(row.logical, ReadIndex(items[2]));
  ASSIGN_OR_RETURN(row.logical_box, ReadBox(items[3]));
  return row;
}

}  // namespace

OrderedJson LayoutSpecJson(const TensorSpec& tensor) { return SpecJson(tensor); }

Status ReadLayoutSpec(const Fields& object, TensorSpec& tensor) { return ReadSpec(object, tensor); }

Result<std::int32_t> ReadIndex(const Fields& number) {
  ASSIGN_OR_RETURN(const std::int64_t index, number.AsCount());
  if (index > std::numeric_limits<std::int32_t>::max()) return number.Bad("too large");
  return static_cast<std::int32_t>(index);
}

void AddMap(const RankLayout& rank, OrderedJson& object) {
  OrderedJson tensors = OrderedJson::array();
  for (const LocalTensor& tensor : rank.tensors) tensors.push_back(LocalJson(tensor));
  object["tensors"] = std::move(tensors);
  object["rows"] = RowsJson(rank.rows);
}

Result<RankLayout> ReadMap(const Fields& object) {
  RankLayout rank;
  ASSIGN_OR_RETURN(const std::vector<Fields> tensors, object.List("tensors"));
  for (const Fields& tensor : tensors) RETURN_IF_ERROR(ReadLocal(tensor, rank.tensors.emplace_back()));
  ASSIGN_OR_RETURN(const std::vector<Fields> rows, object.List("rows"));
  for (const Fields& item : rows) {
    ASSIGN_OR_RETURN(MapRow row, ReadRow(item));
    rank.rows.push_back(std::move(row));
  }
  return rank;
}

}  // namespace bascule
