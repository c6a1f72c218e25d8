// What a checkpoint's directory tells of its origin.
//
// Thread-safety: thread-safe.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/artifact_manifest.h"

namespace bascule {

// The model's id as config.json has it, the commit as the Hugging Face cache names directories after it, and a hash
// over the tokenizer's files. What is not known stays empty.
//
// as ReadTextFile, for a tokenizer file that is there and cannot be read
Result<ModelOrigin> OriginOf(const std::string& checkpoint, const std::string& config_json);

}  // namespace bascule
