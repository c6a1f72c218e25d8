// Llama 2 and 3, and the many checkpoints in their form (SmolLM2).
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {

const Architecture kLlama = {.name = "LlamaForCausalLM", .layer = LlamaLayer};

}  // namespace bascule
