#include "bridge/layout/dtype.h"

#include <array>
#include <cstddef>
#include <string>

namespace bascule {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  int item_bytes;
};

constexpr std::array kDTypes = {
    DTypeFacts{DType::kBool, "BOOL", 1},      DTypeFacts{DType::kU8, "U8", 1},
    DTypeFacts{DType::kI8, "I8", 1},          DTypeFacts{DType::kF8E4M3, "F8_E4M3", 1},
    DTypeFacts{DType::kF8E5M2, "F8_E5M2", 1}, DTypeFacts{DType::kU16, "U16", 2},
    DTypeFacts{DType::kI16, "I16", 2},        DTypeFacts{DType::kF16, "F16", 2},
    DTypeFacts{DType::kBf16, "BF16", 2},      DTypeFacts{DType::kU32, "U32", 4},
    DTypeFacts{DType::kI32, "I32", 4},        DTypeFacts{DType::kF32, "F32", 4},
    DTypeFacts{DType::kU64, "U64", 8},        DTypeFacts{DType::kI64, "I64", 8},
    DTypeFacts{DType::kF64, "F64", 8},
};

constexpr bool InEnumOrder() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(InEnumOrder());

const DTypeFacts& FactsOf(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::string_view DTypeName(DType dtype) { return FactsOf(dtype).name; }
int ItemBytes(DType dtype) { return FactsOf(dtype).item_bytes; }

Result<DType> ParseDType(std::string_view name) {
  for (const DTypeFacts& facts : kDTypes) {
    if (facts.name == name) return facts.dtype;
  }
  std::string known;
  for (const DTypeFacts& facts : kDTypes) known += fmt::format("{}{}", known.empty() ? "" : ", ", facts.name);
  return Status::InvalidArgument("unknown_dtype", fmt::format("got=\"{}\" known: {}", name, known));
}

}  // namespace bascule
