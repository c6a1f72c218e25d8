// One table a file: each is defined in the file of its name and listed in registry.cc.
//
// Thread-safety: thread-safe (constants).
#pragma once

#include "model/architecture.h"

namespace bascule {

extern const Architecture kDeepseekV2, kDeepseekV3;
extern const Architecture kGemma2, kGemma3, kGemma3WithImages;
extern const Architecture kLlama;
extern const Architecture kMistral;
extern const Architecture kMixtral;
extern const Architecture kPhi3;
extern const Architecture kQwen2;
extern const Architecture kQwen3;
extern const Architecture kQwen3Moe;

}  // namespace bascule
