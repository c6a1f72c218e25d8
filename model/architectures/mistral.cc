// Mistral: the tensors of Llama; the size of a head may be stated apart from the hidden size.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {

const Architecture kMistral = {.name = "MistralForCausalLM", .layer = LlamaLayer};

}  // namespace bascule
