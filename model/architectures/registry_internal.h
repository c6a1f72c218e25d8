// One table a file: each is defined in the file of its name and listed in registry.cc.
#pragma once

#include "model/architecture.h"

namespace bascule {

extern const Architecture kLlama, kQwen3;

}  // namespace bascule
