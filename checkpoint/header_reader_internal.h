// The JSON of a safetensors header: every entry and the metadata, nothing else, no key twice.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace bascule {

// Tensors in the order of the text; offsets may still be anything, also their differences; data_offset and data_bytes
// of the header are not set.
//
// DataLoss "header_json" | "duplicate_key" | "bad_name" | "bad_entry" | "shape_overflow" | "unknown_dtype"
//          | "unsupported_dtype" | "bad_metadata"
Result<SafetensorsHeader> ReadHeaderJson(std::span<const std::byte> json);

}  // namespace bascule
