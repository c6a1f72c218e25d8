// A request for tokens as it came over the wire.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <string>

#include "base/status.h"
#include "engine_side/decode/decode_engine.h"

namespace bascule {

namespace v1 {
class GenerateRequest;
}

// `peer` is the client of a request that names none. What the numbers mean for an engine, CheckRequest looks at.
//
// InvalidArgument "bad_request"
Result<GenerateRequest> RequestOf(const v1::GenerateRequest& in, const std::string& peer);

}  // namespace bascule
