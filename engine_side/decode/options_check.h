// Whether an engine can be made of its options, and of what size its cache is.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/decode/kv_cache.h"

namespace bascule {

// InvalidArgument "bad_options" | "bad_cores"
Status CheckOptions(const DecodeOptions& options);
// DecodeOptions::kv_pages, or the default.
std::int64_t KvPageCount(const DecodeOptions& options, const KvShape& shape);

}  // namespace bascule
