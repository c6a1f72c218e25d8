// Qwen2 and Qwen2.5: as Llama, with biases on q, k and v and none on the way out.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {

const Architecture kQwen2 = {.name = "Qwen2ForCausalLM", .always_qkv_bias = true, .layer = LlamaLayer};

}  // namespace bascule
