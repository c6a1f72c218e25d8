// Tensors and map rows as JSON: what artifact manifests and layout files share.
//
//   tensor   {"name", "dtype", "shape": [..]}; one of a rank also has "stride": [..] where it is not dense
//   box      [offset, extent], a list of numbers each
//   row      [local, box, logical, box], or [local, box] for fill
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <nlohmann/json.hpp>

#include "bridge/layout/layout.h"
#include "checkpoint/json_fields_internal.h"

namespace bascule {

OrderedJson LayoutSpecJson(const TensorSpec& tensor);
// Sets "tensors" and "rows" of `object`.
void AddMap(const RankLayout& rank, OrderedJson& object);

// What a reader gets is well-formed; CheckLayout says whether it makes sense.
Status ReadLayoutSpec(const Fields& object, TensorSpec& tensor);
Result<RankLayout> ReadMap(const Fields& object);
// A whole number from 0 to 2^31 - 1.
Result<std::int32_t> ReadIndex(const Fields& number);

}  // namespace bascule
