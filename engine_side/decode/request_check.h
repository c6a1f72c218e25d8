// Whether a request is one that the model can serve, before anything is kept of it.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine_side/decode/decode_engine.h"

namespace bascule {

// InvalidArgument "bad_request"  says what is wrong, with the numbers
Status CheckRequest(const GenerateRequest& request, std::int64_t vocabulary, std::int64_t max_positions);

}  // namespace bascule
