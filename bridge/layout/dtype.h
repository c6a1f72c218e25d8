// Element types, under the spelling of the safetensors format ("BF16").
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace bascule {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

std::string_view DTypeName(DType dtype);
int ItemBytes(DType dtype);  // 1, 2, 4 or 8

// InvalidArgument "unknown_dtype"  names what is known
Result<DType> ParseDType(std::string_view name);

}  // namespace bascule
