// Qwen3: as Llama, with a norm over each query and key head.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {

// The class default of head_dim is a constant that rarely fits, so it has to be stated.
const Architecture kQwen3 = {
    .name = "Qwen3ForCausalLM", .head_size = HeadSizeRule::kStated, .qk_norm = true, .layer = LlamaLayer};

}  // namespace bascule
